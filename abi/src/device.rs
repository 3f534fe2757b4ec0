//! PCI functions that are a node's own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_DEVICE_CONFINED`: it cannot reach memory that is not the node's.
pub const DEVICE_CONFINED: u32 = 1 << 0;
/// `INSULA_DEVICE_HELD`: the node has it; without this flag it went back to the base.
pub const DEVICE_HELD: u32 = 1 << 1;

/// `struct insula_device`: a PCI function by its address.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Device {
    /// Segment group.
    pub segment: u32,
    /// Bus.
    pub bus: u32,
    /// Device number times eight, plus the function's number.
    pub function: u32,
    /// [`DEVICE_CONFINED`], [`DEVICE_HELD`]; zero when adding.
    pub flags: u32,
}

/// `struct insula_devices`: those that a node has or, if stopped, had.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Devices {
    /// In: address of an array of [`Device`] to fill, or 0.
    pub devices: u64,
    /// In: its length.
    pub capacity: u32,
    /// Out: how many there are.
    pub count: u32,
}
