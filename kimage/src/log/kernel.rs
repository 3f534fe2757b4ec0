//! Access to a kernel's memory by the kernel's own addresses.

use super::error::LogError;
use super::layout::LogLayout;
use crate::elf::{KERNEL_IMAGE_SIZE, START_KERNEL_MAP};
use crate::memory::PhysicalMemory;

/// Alignment of the virtual offset: `MIN_KERNEL_ALIGN` of arch/x86/include/asm/boot.h.
const OFFSET_ALIGNMENT: u64 = 2 << 20;
/// `__PAGE_OFFSET_BASE_L4`: start of the direct map of a kernel without the variable
/// `page_offset_base`.
const PAGE_OFFSET_BASE: u64 = 0xffff_8880_0000_0000;
/// Width of a physical address: `MAX_PHYSMEM_BITS` of arch/x86/include/asm/sparsemem.h.
const PHYSICAL_BITS: u32 = 52;

/// The kernel whose image is at `physical`.
pub(super) struct Kernel<'a, M: ?Sized> {
    pub(super) layout: &'a LogLayout,
    pub(super) memory: &'a M,
    physical: u64,
}

impl<'a, M: PhysicalMemory + ?Sized> Kernel<'a, M> {
    pub(super) fn at(layout: &'a LogLayout, memory: &'a M, physical: u64) -> Self {
        Self {
            layout,
            memory,
            physical,
        }
    }

    /// The physical address of a link address.
    pub(super) fn of_link(&self, link: u64) -> u64 {
        self.physical
            .wrapping_add(link.wrapping_sub(self.layout.text))
    }

    /// The pointer to the ring in use, and the offset of run-time addresses from link addresses.
    /// The pointer determines the offset, since it can only point to one of few variables.
    pub(super) fn prb(&self) -> Result<(u64, u64), LogError> {
        let prb = self.u64_at(self.of_link(self.layout.prb))?;
        let offsets = self.layout.rings.iter().map(|ring| prb.wrapping_sub(*ring));
        let mut possible =
            offsets.filter(|offset| *offset < KERNEL_IMAGE_SIZE && offset % OFFSET_ALIGNMENT == 0);
        let offset = possible
            .next()
            .ok_or(LogError::Damaged("the pointer to it is invalid"))?;
        Ok((prb, offset))
    }

    /// The physical address of a virtual one, in the image or in the direct map.
    pub(super) fn of_virtual(&self, address: u64, virtual_offset: u64) -> Result<u64, LogError> {
        let link = address.wrapping_sub(virtual_offset);
        if (self.layout.text..self.layout.end).contains(&link) {
            return Ok(self.of_link(link));
        }
        let base = match self.layout.page_offset_base {
            Some(variable) => self.u64_at(self.of_link(variable))?,
            None => PAGE_OFFSET_BASE,
        };
        let physical = address
            .checked_sub(base)
            .filter(|physical| physical >> PHYSICAL_BITS == 0);
        let mapped = physical.filter(|_| address < START_KERNEL_MAP);
        mapped.ok_or(LogError::Damaged("a pointer is invalid"))
    }

    /// The 64-bit word at a physical address.
    pub(super) fn u64_at(&self, physical: u64) -> Result<u64, LogError> {
        let mut word = [0; 8];
        self.memory.read(physical, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// `size` bytes at a physical address.
    pub(super) fn bytes_at(&self, physical: u64, size: usize) -> Result<Vec<u8>, LogError> {
        /// Larger than any structure or text of the log (the size of a text has 16 bits).
        const SIZE_MAX: usize = 1 << 16;
        if size > SIZE_MAX {
            return Err(LogError::Damaged("its layout is invalid"));
        }
        let mut bytes = vec![0; size];
        self.memory.read(physical, &mut bytes)?;
        Ok(bytes)
    }
}
