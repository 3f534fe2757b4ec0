//! A kernel's memory by the addresses that the kernel itself uses.

use super::error::LogError;
use super::layout::LogLayout;
use crate::elf::{KERNEL_IMAGE_SIZE, START_KERNEL_MAP};
use crate::memory::PhysicalMemory;

/// Alignment of the virtual offset: `MIN_KERNEL_ALIGN` of arch/x86/include/asm/boot.h.
const OFFSET_ALIGNMENT: u64 = 2 << 20;
/// `__PAGE_OFFSET_BASE_L4`: where a kernel without the variable `page_offset_base` maps all memory.
const PAGE_OFFSET_BASE: u64 = 0xffff_8880_0000_0000;
/// Widest physical address: `MAX_PHYSMEM_BITS` of arch/x86/include/asm/sparsemem.h.
const PHYSICAL_BITS: u32 = 52;

/// The kernel whose image lies at `physical`.
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

    /// The physical address of what was linked to `link`.
    pub(super) fn of_link(&self, link: u64) -> u64 {
        self.physical
            .wrapping_add(link.wrapping_sub(self.layout.text))
    }

    /// The pointer to the ring in use, and by how much virtual addresses lie above those linked to: one tells the
    /// other, since the pointer can only point to one of few variables.
    pub(super) fn prb(&self) -> Result<(u64, u64), LogError> {
        let prb = self.u64_at(self.of_link(self.layout.prb))?;
        let offsets = self.layout.rings.iter().map(|ring| prb.wrapping_sub(*ring));
        let mut possible =
            offsets.filter(|offset| *offset < KERNEL_IMAGE_SIZE && offset % OFFSET_ALIGNMENT == 0);
        let offset = possible
            .next()
            .ok_or(LogError::Damaged("the pointer to it points elsewhere"))?;
        Ok((prb, offset))
    }

    /// The physical address of a virtual one: in the image, or where the kernel maps all memory.
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
        mapped.ok_or(LogError::Damaged("a pointer points to no memory"))
    }

    /// The word at a physical address.
    pub(super) fn u64_at(&self, physical: u64) -> Result<u64, LogError> {
        let mut word = [0; 8];
        self.memory.read(physical, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// `size` bytes at a physical address.
    pub(super) fn bytes_at(&self, physical: u64, size: usize) -> Result<Vec<u8>, LogError> {
        /// Larger than any structure of the log, and than any text (whose size has 16 bits).
        const SIZE_MAX: usize = 1 << 16;
        if size > SIZE_MAX {
            return Err(LogError::Damaged("its layout is impossible"));
        }
        let mut bytes = vec![0; size];
        self.memory.read(physical, &mut bytes)?;
        Ok(bytes)
    }
}
