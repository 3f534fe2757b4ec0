//! Configuration space of PCI functions in memory, and their tables of messages.

#![allow(unsafe_code, reason = "both are registers in memory")]

use core::ptr;

use insula_bare::memory::PhysAddr;

use crate::hw::boot_info::acpi::PciBus;
use crate::hw::memory::kernel_table::{self, BASE_MEMORY_MAX};
use crate::hw::memory::room::NoMemory;

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

/// An entry of a function's table of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageEntry {
    at: PhysAddr,
}

impl MessageEntry {
    /// Returns the entry at an address, a multiple of 8 as each is, within a BAR of a function of this node.
    ///
    /// # Errors
    /// [`NoMemory`], also if it cannot be reached.
    pub(crate) fn map(at: PhysAddr) -> Result<Self, NoMemory> {
        /// Offset of the last word.
        const LAST: u64 = 12;
        for at in [at.0, at.0 + LAST] {
            kernel_table::map_register_page(PhysAddr(at))?;
        }
        Ok(Self { at })
    }

    /// Writes a word of it, of four. The function decodes its BARs.
    pub(crate) fn write(&mut self, word: u64, value: u32) {
        let at = PhysAddr(self.at.0 + 4 * (word & 3)).in_direct_map().cast();
        // SAFETY: 1. its pages were mapped, uncached, and stay so. 2. It is an aligned register of an entry,
        // by which the function interrupts this node's cores at most.
        unsafe { ptr::write_volatile(at, value) }
    }
}
