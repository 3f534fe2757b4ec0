//! Mirror of `include/insula_hotplug.h`: CPU and memory hotplug requests to the kernel of a Linux
//! node.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `enum insula_hotplug_kind`: the kind of a message.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HotplugKind(pub u8);

impl HotplugKind {
    /// Change nothing; the reply describes the node.
    pub const QUERY: Self = Self(1);
    /// Bring the core online.
    pub const CPU_ONLINE: Self = Self(2);
    /// Take the core offline, and keep it so.
    pub const CPU_OFFLINE: Self = Self(3);
    /// Add the memory.
    pub const MEMORY_ADD: Self = Self(4);
    /// Migrate pages away from the memory, then remove it.
    pub const MEMORY_REMOVE: Self = Self(5);
}

/// `struct insula_hotplug_request`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct HotplugRequest {
    /// Local APIC id of the core.
    pub apic_id: u32,
    /// Zero.
    pub reserved: u32,
    /// Physical address of the memory.
    pub start: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// `struct insula_hotplug_reply`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct HotplugReply {
    /// 0, or the negative errno of the node's kernel.
    pub error: i32,
    /// Zero.
    pub reserved: u32,
    /// Unit of memory hotplug: size and alignment, in bytes.
    pub memory_block: u64,
}
