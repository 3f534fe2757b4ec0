//! PCI functions assigned to a node.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_DEVICE_IOMMU`: an IOMMU domain restricts its DMA to the node's memory.
pub const DEVICE_IOMMU: u32 = 1 << 0;
/// `INSULA_DEVICE_ATTACHED`: the node has it; without this flag it was returned to the base.
pub const DEVICE_ATTACHED: u32 = 1 << 1;
/// `INSULA_DEVICE_RELAYED`: the base gets its interrupts and sends them on, as the device of a confined
/// node needs it.
pub const DEVICE_RELAYED: u32 = 1 << 2;

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
    /// [`DEVICE_IOMMU`], [`DEVICE_ATTACHED`], [`DEVICE_RELAYED`]; only the last may be set when adding.
    pub flags: u32,
}

/// `struct insula_devices`: a node's devices or, if it is stopped, those that it had.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Devices {
    /// In: address of an array of [`Device`] to fill, or 0.
    pub devices: u64,
    /// In: its length.
    pub capacity: u32,
    /// Out: number of devices.
    pub count: u32,
}
