//! Walking a kernel's page tables from outside.
//!
//! Source: Intel SDM volume 3, 4.5 "4-level paging and 5-level paging". Only for reading: addresses
//! are translated, permissions ignored.

use super::error::VirtualReadError;
use crate::memory::PhysicalMemory;

/// `P`: the entry is present.
const PRESENT: u64 = 1 << 0;
/// `PS`: the entry maps a large page.
const LARGE: u64 = 1 << 7;
/// The physical address in an entry: bits 12 to 51.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bits of an address that index one level.
const LEVEL_BITS: u32 = 9;
/// Bits of an address within the smallest page.
const PAGE_BITS: u32 = 12;

/// Number of levels of the page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Levels {
    /// Addresses of 48 bits.
    Four,
    /// Addresses of 57 bits.
    Five,
}

impl Levels {
    /// Position in an address of the bits that index the root.
    fn shift(self) -> u32 {
        match self {
            Self::Four => PAGE_BITS + 3 * LEVEL_BITS,
            Self::Five => PAGE_BITS + 4 * LEVEL_BITS,
        }
    }
}

/// A page table in memory.
#[derive(Debug)]
pub struct PageTable<'a, M: ?Sized> {
    memory: &'a M,
    root: u64,
    levels: Levels,
}

impl<'a, M: PhysicalMemory + ?Sized> PageTable<'a, M> {
    /// The table whose root is at that physical address.
    #[must_use]
    pub fn new(memory: &'a M, root: u64, levels: Levels) -> Self {
        Self {
            memory,
            root,
            levels,
        }
    }

    /// Translates a virtual address: the physical address, and the number of bytes from there to
    /// the end of the page. `None` if it is not mapped.
    #[must_use]
    pub fn translate(&self, address: u64) -> Option<(u64, u64)> {
        let mut shift = self.levels.shift();
        if !is_canonical(address, shift + LEVEL_BITS) {
            return None;
        }
        let mut table = self.root;
        loop {
            let entry = self.entry(table, address >> shift)?;
            let is_page = shift == PAGE_BITS || (entry & LARGE != 0 && shift <= 30);
            if is_page {
                let size = 1_u64 << shift;
                let inside = address & (size - 1);
                return Some(((entry & ADDRESS & !(size - 1)) + inside, size - inside));
            }
            table = entry & ADDRESS;
            shift -= LEVEL_BITS;
        }
    }

    /// Copies bytes from a virtual address.
    ///
    /// # Errors
    /// [`VirtualReadError`] with the first address that is not mapped to memory; `into` has the
    /// bytes before it.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), VirtualReadError> {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let (physical, left) = self.translate(at).ok_or(VirtualReadError(at))?;
            let size = usize::try_from(left).map_or(into.len(), |left| left.min(into.len() - done));
            self.memory
                .read(physical, &mut into[done..done + size])
                .map_err(|_| VirtualReadError(at))?;
            done += size;
        }
        Ok(())
    }

    /// The entry indexed by the low bits of `index`, if it is present.
    fn entry(&self, table: u64, index: u64) -> Option<u64> {
        let mut entry = [0; 8];
        let offset = (index & ((1 << LEVEL_BITS) - 1)) * 8;
        self.memory.read(table + offset, &mut entry).ok()?;
        Some(u64::from_le_bytes(entry)).filter(|entry| entry & PRESENT != 0)
    }
}

/// Whether the bits above the lower `bits` are all equal to the highest of these.
fn is_canonical(address: u64, bits: u32) -> bool {
    let above = 64 - bits;
    ((address << above).cast_signed() >> above).cast_unsigned() == address
}
