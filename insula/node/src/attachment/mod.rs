//! What a node has of the base by virtio, as users and records describe it.
//!
//! The node's supervisor serves it (`insula_virtio`). Here it is parsed, checked and claimed before
//! anything is taken, so that nodes are created without the back ends.

mod address;
mod choice;
mod disk;
mod disk_copy;
mod drained;
pub mod failure;
mod file_copy;
mod folder;
mod network;
mod port;
mod qcow2;
pub mod request;
mod resolver;
mod volume;

pub use address::cid;
pub(crate) use address::{can_be_requested, free_address};
pub use choice::{bridge_of_network, network_of_bridge};
pub(crate) use choice::{check_hidden, choose_subnet, network};
pub use disk::{DiskFile, DiskSpec, find_storage_daemon};
pub(crate) use disk_copy::{CopiedDisks, DiskStore, keep, open_served};
pub use drained::{Drained, Malformed, UsedIndex};
pub use failure::{DeviceFailure, failures};
pub use folder::{SharedFolder, VIRTIOFSD_PLACES, find_virtiofsd};
pub use network::{BRIDGE, Link, NamedNetwork, Networking, Subnet, SubnetError, is_bridge};
pub use port::{NodePort, Protocol, Publish, PublishError};
pub use request::{drain, resize};
pub use resolver::nameservers;
pub(crate) use resolver::resolver;
pub use volume::{VOLUMES_MAX, Volume, VolumeError, VolumeSpec};
