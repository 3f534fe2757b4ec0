//! Rust mirror of `include/insula.h`, `include/insula_node.h` and `include/insula_mirror.h`, the
//! interface between the `insula` command and `insula.ko`, and of the protocols between kernels:
//! channels in `include/insula_channel.h` (module [`channel`]), delegation in
//! `include/insula_lwk.h` ([`lwk`]), running processes that go on there in
//! `include/insula_running.h` ([`running`]), the monitor of a confined node in `include/insula_monitor.h`
//! ([`monitor`]), hotplug of a Linux node in `include/insula_hotplug.h`
//! ([`hotplug`]), granted memory in `include/insula_grant.h` ([`grant`]), shared cores in
//! `include/insula_shared_core.h` ([`shared_core`]), virtio messages in
//! `include/insula_virtio.h` ([`virtio`]), and messages between programs of a lightweight-kernel node in
//! `include/insula_server.h` ([`server`]), by which file servers are asked: `include/insula_files.h`
//! ([`files`]), and network servers: `include/insula_net.h` ([`net`]); and PCI functions that such programs drive: `include/insula_pci.h` ([`pci`]).
//!
//! The C headers are authoritative and describe the protocols in their opening comments; this
//! crate repeats their structures, constants and ioctl numbers under the same names without the
//! `insula_` prefix. `tests/layout/` compiles the headers and compares. Every structure derives
//! [`zerocopy::IntoBytes`], so a hidden padding byte fails the build.
//!
//! Enumerations are open newtypes over `u32`: a value unknown to this revision is kept, never
//! undefined behaviour.

#![no_std]

pub mod channel;
mod control;
mod device;
pub mod files;
pub mod grant;
pub mod hotplug;
pub mod ioctl;
pub mod lwk;
mod memory;
pub mod monitor;
mod name;
pub mod net;
mod node;
pub mod pci;
pub mod running;
pub mod server;
pub mod shared_core;
pub mod virtio;

pub use control::{
    Cpu, CpuOwner, Description, Hello, Image, MACHINE_VIRTUALIZES, MACHINE_VMX, MACHINE_X2APIC,
    Machine, Names, Pool,
};
pub use device::{DEVICE_ATTACHED, DEVICE_IOMMU, DEVICE_RELAYED, Device, Devices};
pub use memory::{
    Chunk, Chunks, GRANULE, LOWMEM_LIMIT, MemoryCopy, MemoryShow, MemoryUse, NUMA_ANY,
    REQUEST_BLOCKS, Request, WORKING_SET_MAX,
};
pub use name::{NAME_MAX, Name};
pub use node::{
    NODE_CONFINED, NODE_CPUS_KEPT, NODE_PAUSED, NODE_RETIRED, NODE_SUPERVISED, NODE_UNRESPONSIVE,
    NodeCreate, NodeGrow, NodeInfo, NodeInterrupt, NodeRecreate, NodeShare, NodeShrink, NodeStart,
    NodeStop, NodeSupervise, RECREATE_UNLESS_RETIRED, Reason, ShareBy, State, VECTOR_NMI,
};

/// `INSULA_MAGIC`: "INSULA" in little endian, first word of [`Hello`].
pub const MAGIC: u64 = 0x414c_5553_4e49;
/// `INSULA_REVISION`: the revision of the interface that this crate mirrors.
pub const REVISION: u32 = 4;
/// `INSULA_DESCRIPTION_MAX`: longest description of an image or a node, in bytes.
pub const DESCRIPTION_MAX: usize = 256 * 1024;
/// `INSULA_NODE_CPUS_MAX`: most cores in one node.
pub const NODE_CPUS_MAX: usize = 256;
