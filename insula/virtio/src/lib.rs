//! Virtio devices for a node: stock drivers in the node, stock backends on the base, no hypervisor.
//!
//! Nothing traps between two kernels, so a device has no registers. A driver sends messages of the
//! virtio-msg draft instead: `insula_virtio.ko` in the node sends them through a channel of its
//! own, and a `Bus` here answers. The data path needs no messages: virtqueues lie in the node's
//! memory, which backends can map since it is the base's too, and notifications are events of the
//! channel (a bit and a doorbell), which the module connects to eventfds. So vhost of the kernel
//! and vhost-user processes serve a node as they serve a guest of KVM.
//!
//! | module | concept |
//! |---|---|
//! | `message` | messages of the channel: parsing, building |
//! | `device` | a device as its driver sees it: status, features, configuration, virtqueues |
//! | `bus` | the devices of a node, by number |
//! | `devices` | which devices a node has, and their creation |
//! | `server`, `current_bus`, `node_events` | a thread that serves a running node; the devices of its present session; what happens to them |
//! | `memory` | the node's memory, mapped for backends |
//! | `request_listener` | requests of commands: changes of the node's memory, and no requests in flight |
//! | `vhost` | setup common to all vhost backends, in the kernel or not |
//! | `backend_process`, `monitor`, `monitor_thread`, `slot` | vhost-user processes: starting and stopping one; restarting it when it dies; the place of one in a device |
//! | `command`, `stderr`, `backoff` | commands with a timeout; standard error of backends; pauses between attempts |
//! | `state` | present failures of a node's devices |
//! | `checkpoint` | state that the next supervisor needs if this one is killed |
//! | `inflight` | buffers of a virtqueue that a killed backend had not used |
//! | `static_nodes` | device files by which the kernel loads the drivers of backends |
//! | `vsock` | sockets between node and base |
//! | `network`, `bridge`, `publish` | a network card, the networks of nodes, ports of the base |
//! | `nat`, `nat_table`, `port_forward` | the way to other hosts and back |
//! | `base_card` | the card of containers on the base |
//! | `hold` | packets for a container that is being moved |
//! | `files`, `virtiofsd` | folders of the base, and the daemon that serves them |
//! | `disk`, `locked_file`, `storage_daemon`, `storage_query` | files of the base as disks; the file itself; the daemon that serves it; storage that may hang |
//! | `drain` | waiting until no request to a disk is in flight |
//!
//! A node's driver is not trusted: an invalid message is refused as the specification says or ends
//! the session (`ProtocolError`). It never reaches a backend.
//!
//! Sources: Virtual I/O Device specification 1.3; its draft of a transport by messages
//! (virtio-msg).

mod backend_process;
mod backoff;
mod base_card;
mod bridge;
mod bus;
mod checkpoint;
mod command;
mod current_bus;
mod device;
mod devices;
mod disk;
#[cfg(test)]
mod disk_tests;
mod drain;
mod files;
mod hold;
mod inflight;
mod locked_file;
mod memory;
mod message;
mod monitor;
mod monitor_thread;
mod name_server;
mod nat;
mod nat_table;
mod network;
mod node_events;
mod port_forward;
mod publish;
mod request_listener;
mod server;
mod slot;
mod state;
mod static_nodes;
mod stderr;
mod storage_daemon;
mod storage_query;
#[cfg(test)]
mod tests;
mod vhost;
mod virtiofsd;
mod vsock;

pub use base_card::{make_base_card, remove_base_card};
pub use devices::Devices;
pub use hold::{HoldError, PacketHold, Port};
pub use name_server::Names;
pub use nat::forget_network;
pub use publish::PublishedPorts;
pub use server::{Server, has_driver};
pub use static_nodes::make_static_nodes;
