//! Rust mirror of `include/insula.h`, the interface between the `insula` command and `insula.ko`,
//! and of what kernels share: `include/insula_channel.h` (module [`channel`]), delegation in
//! `include/insula_lwk.h` ([`lwk`]), orders to a Linux node's kernel in `include/insula_order.h`
//! ([`order`]), and `include/insula_virtio.h`, what virtio drivers and devices say to each other
//! ([`virtio`]).
//!
//! The C header is the truth and its opening comment tells the protocol; this crate repeats its
//! structures, constants and ioctl numbers under the same names without the `insula_` prefix.
//! `tests/layout/` compiles the header and proves both equal. Every structure derives
//! [`zerocopy::IntoBytes`], so a hidden padding byte fails the build.
//!
//! Enumerations are open newtypes over `u32`: a value that this revision does not know is kept,
//! never undefined behaviour.

#![no_std]

pub mod channel;
mod control;
mod device;
pub mod frames;
pub mod ioctl;
pub mod lwk;
mod memory;
mod name;
mod node;
pub mod order;
pub mod virtio;

pub use control::{Cpu, CpuOwner, Description, Hello, Image, MACHINE_X2APIC, Machine, Names, Pool};
pub use device::{DEVICE_CONFINED, DEVICE_HELD, Device, Devices};
pub use memory::{
    Chunk, Chunks, GRANULE, LOW_LIMIT, MemoryCopy, NUMA_ANY, REQUEST_BLOCKS, Request,
};
pub use name::{NAME_MAX, Name};
pub use node::{
    NODE_HELD, NODE_RETIRED, NODE_SUPERVISED, NODE_UNRESPONSIVE, NodeCreate, NodeGrow, NodeInfo,
    NodeInterrupt, NodeRecreate, NodeShare, NodeShrink, NodeStart, NodeStop, NodeSupervise,
    RECREATE_UNLESS_RETIRED, Reason, State, VECTOR_NMI,
};

/// `INSULA_MAGIC`: "INSULA" in little endian, first word of [`Hello`].
pub const MAGIC: u64 = 0x414c_5553_4e49;
/// `INSULA_REVISION`: the revision of the interface that this crate mirrors.
pub const REVISION: u32 = 1;
/// `INSULA_DESCRIPTION_MAX`: longest description that the module keeps for its owner, in bytes.
pub const DESCRIPTION_MAX: usize = 256 * 1024;
/// `INSULA_NODE_CPUS_MAX`: most cores in one node.
pub const NODE_CPUS_MAX: usize = 256;
