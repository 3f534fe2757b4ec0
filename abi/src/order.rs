//! Mirror of `include/insula_order.h`: what the base asks the kernel of a Linux node for.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `enum insula_order_kind`: the kind of a message.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrderKind(pub u8);

impl OrderKind {
    /// Nothing; the answer tells of the node.
    pub const ABOUT: Self = Self(1);
    /// Bring this core online.
    pub const CPU_ON: Self = Self(2);
    /// Offline, and leave it so.
    pub const CPU_OFF: Self = Self(3);
    /// Use this memory.
    pub const MEMORY_ADD: Self = Self(4);
    /// Move all out of it, and use it no more.
    pub const MEMORY_REMOVE: Self = Self(5);
}

/// `struct insula_order`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Order {
    /// Of the core.
    pub apic_id: u32,
    /// Zero.
    pub reserved: u32,
    /// Of the memory.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
}

/// `struct insula_answer`.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Answer {
    /// 0, or the negative error of the node's kernel.
    pub error: i32,
    /// Zero.
    pub reserved: u32,
    /// Memory comes and goes in multiples of it, so aligned; in bytes.
    pub memory_block: u64,
}
