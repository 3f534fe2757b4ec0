//! What a confined node may do, as pure functions and tables.

pub mod cpuid;
pub mod icr;
pub mod msr;
pub mod pci;
pub mod port;
pub mod saved;
pub mod share;
pub mod xcr0;
