//! Configuration space of PCI functions in memory.

#![allow(unsafe_code, reason = "configuration space is registers in memory")]

use core::ptr;

use insula_bare::memory::PhysAddr;

use crate::hw::boot_info::acpi::PciBus;
use crate::hw::memory::kernel_table::BASE_MEMORY_MAX;

/// Bytes of a function's configuration space.
pub(crate) const CONFIG_SIZE: u16 = 4096;

/// Configuration space of a function of this node.
#[derive(Debug)]
pub(crate) struct ConfigSpace {
    at: PhysAddr,
}

impl ConfigSpace {
    /// Returns that of a function of a bus, by its number of 8 bits; `None` if it cannot be reached.
    pub(crate) fn of(bus: &PciBus, function: u8) -> Option<Self> {
        let at = bus.config.start + u64::from(function) * u64::from(CONFIG_SIZE);
        (at < BASE_MEMORY_MAX).then_some(Self { at: PhysAddr(at) })
    }

    fn word(&self, offset: u16) -> *mut u32 {
        let offset = offset & (CONFIG_SIZE - 1) & !3;
        PhysAddr(self.at.0 + u64::from(offset))
            .in_direct_map()
            .cast()
    }

    /// Reads the register at an offset, of 32 bits.
    pub(crate) fn read(&self, offset: u16) -> u32 {
        // SAFETY: 1. the kernel's table maps the configuration space of each bus, uncached. 2. It is an
        // aligned register within that of one function.
        unsafe { ptr::read_volatile(self.word(offset)) }
    }

    /// Writes the register at an offset.
    pub(crate) fn write(&mut self, offset: u16, value: u32) {
        // SAFETY: as above; what the device does then is for the caller to know, who writes only what
        // makes it quiet, or lets it access memory that is kept for it.
        unsafe { ptr::write_volatile(self.word(offset), value) }
    }
}
