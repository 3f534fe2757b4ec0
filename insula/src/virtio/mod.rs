//! Virtio devices for a node, with stock drivers there and stock back ends here, and no hypervisor.
//!
//! Nothing traps between two kernels, so a device has no registers. What a driver wishes of its
//! device it says in messages of the virtio-msg draft, which `insula_virtio.ko` in the node sends
//! through a channel of its own and a [`Bus`] here answers. What is done all the time needs no
//! message: virtqueues lie in the node's memory, where the back ends reach them, since the base has
//! that memory too; and that a virtqueue has buffers, or that they have been used, is an event of
//! the channel (a bit and a doorbell), which the module makes of an eventfd and an eventfd of it. So
//! vhost of the kernel and vhost-user processes serve a node as they serve a guest of KVM.
//!
//! | module | concept |
//! |---|---|
//! | `message` | what crosses the channel, as bytes |
//! | `device` | a device as its driver sees it: status, features, configuration, virtqueues |
//! | `bus` | the devices of a node, by number: answers requests |
//! | `server` | a thread that serves a running node |
//! | `memory` | the node's memory, as back ends want it |
//! | `resize` | the same when it becomes more or less |
//! | `vhost` | what back ends have in common, in the kernel or not |
//! | `back_end`, `keeper`, `post` | programs as back ends: started and ended; followed by another if they are killed; for a node's device |
//! | `command`, `said`, `pause` | commands that are waited for; what programs say; pauses between attempts |
//! | `state` | what is wrong with a node's devices, for whoever asks |
//! | `notes` | what a supervisor leaves to the next one, if it is killed |
//! | `outstanding` | which buffers of a virtqueue a back end that was killed has not used |
//! | `static_nodes` | files in `/dev` by which the kernel loads the drivers of back ends |
//! | `vsock` | sockets between node and base |
//! | `network`, `bridge`, `publish` | a network card, the network of all nodes, ports of the base |
//! | `files`, `virtiofsd` | folders of the base, and the program that serves them |
//! | `disk`, `storage_daemon` | files of the base as disks, and the program that serves them |
//!
//! A node's driver may say anything: what makes no sense is either refused as the specification
//! says, or ends the session ([`Nonsense`]). It never reaches a back end.
//!
//! Sources: Virtual I/O Device specification 1.3; its draft of a transport by messages (virtio-msg).

mod back_end;
mod bridge;
mod bus;
mod command;
mod device;
mod disk;
#[cfg(test)]
mod disk_tests;
mod files;
mod keeper;
mod memory;
mod message;
mod network;
mod notes;
mod outstanding;
mod pause;
mod post;
mod publish;
mod resize;
mod said;
mod server;
mod state;
mod static_nodes;
mod storage;
mod storage_daemon;
#[cfg(test)]
mod tests;
mod vhost;
mod virtiofsd;
mod vsock;

pub(crate) use bridge::free_address;
pub use bridge::free_addresses;
pub use bus::{Bus, TooMany};
pub use device::{BackEnd, Identity, StartError, Virtqueue};
pub use disk::Disk;
pub use files::Files;
pub use memory::{NodeMemory, ShareError};
pub use message::Nonsense;
pub use network::{Network, Networking};
pub use publish::{NoPublish, Publish};
pub use resize::{ResizeError, resize};
pub use server::{Devices, Server, cid, wanted};
pub use state::{DeviceFailure, failures};
pub use static_nodes::make_static_nodes;
pub use storage_daemon::{DiskError, DiskFile, DiskSpec, NoStorageDaemon};
pub use vhost::Events;
pub use virtiofsd::{FolderError, NoVirtioFsd, SharedFolder, find_virtiofsd};
pub use vsock::Vsock;
