//! The node's hardware: what the machine gives the kernel, and what all cores share of it.

pub mod boot_info;
pub mod clock;
pub mod cores;
pub(crate) mod interrupts;
pub mod log;
pub mod memory;
pub(crate) mod pci;
pub mod power;
pub mod random;
pub(crate) mod shared_core;
pub(crate) mod tlb;
