//! Mirror of `include/insula_pci.h`: PCI functions of a lightweight-kernel node, driven by its programs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_SYS_PCI_LIST`.
pub const SYS_PCI_LIST: u64 = 1033;
/// `INSULA_SYS_PCI_CLAIM`.
pub const SYS_PCI_CLAIM: u64 = 1034;
/// `INSULA_SYS_PCI_RELEASE`.
pub const SYS_PCI_RELEASE: u64 = 1035;
/// `INSULA_SYS_PCI_ENABLE`.
pub const SYS_PCI_ENABLE: u64 = 1036;
/// `INSULA_SYS_PCI_READ`.
pub const SYS_PCI_READ: u64 = 1037;
/// `INSULA_SYS_PCI_MAP`.
pub const SYS_PCI_MAP: u64 = 1038;
/// `INSULA_SYS_PCI_ALLOCATE`.
pub const SYS_PCI_ALLOCATE: u64 = 1039;
/// `INSULA_SYS_PCI_INTERRUPT`.
pub const SYS_PCI_INTERRUPT: u64 = 1040;

/// `INSULA_PCI_BARS`: BARs of a function.
pub const PCI_BARS: usize = 6;
/// `INSULA_PCI_DECODE`: the function answers at its BARs.
pub const PCI_DECODE: u64 = 1;
/// `INSULA_PCI_DMA`: the function may access memory.
pub const PCI_DMA: u64 = 2;
/// `INSULA_PCI_BLOCK_MAX`: most bytes of memory that are given at once.
pub const PCI_BLOCK_MAX: u64 = 4 << 20;
/// `INSULA_PCI_MEMORY_MAX`: most bytes of memory of a claim.
pub const PCI_MEMORY_MAX: u64 = 64 << 20;
/// `INSULA_PCI_MAPPINGS_MAX`: most BAR mappings, and most blocks of memory, of a claim.
pub const PCI_MAPPINGS_MAX: usize = 64;
/// `INSULA_PCI_MESSAGES_MAX`: most messages of a function that can interrupt.
pub const PCI_MESSAGES_MAX: u64 = 32;
/// `INSULA_PCI_INTERRUPTS_MAX`: most messages that can interrupt a node.
pub const PCI_INTERRUPTS_MAX: usize = 64;
/// `INSULA_PCI_NO_ENDPOINT`: nobody receives a message.
pub const PCI_NO_ENDPOINT: u64 = u64::MAX;
/// `INSULA_PCI_INTERRUPTED`: operation of the request that an interrupt is.
pub const PCI_INTERRUPTED: u32 = u32::MAX;

/// `struct insula_pci_function`: a function of the node.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct PciFunction {
    /// Segment, bus, device and function, of 16, 8, 5 and 3 bits.
    pub address: u32,
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class, subclass and programming interface, of 8 bits each.
    pub class_code: u32,
    /// Process id of who has claimed it; 0 if nobody has.
    pub owner: u32,
    /// Bytes of each memory BAR; 0 for others.
    pub bars: [u64; PCI_BARS],
}

/// `struct insula_pci_memory`: memory that a function reaches.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct PciMemory {
    /// In: a number of bytes, rounded up to pages.
    pub size: u64,
    /// Out: where it is mapped.
    pub start: u64,
    /// Out: where the device finds it.
    pub device_address: u64,
}
