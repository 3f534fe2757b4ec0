//! Walking a kernel's page tables from outside.
//!
//! Source: Intel SDM volume 3, 4.5 "4-level paging and 5-level paging". Only what a reader needs: where a virtual
//! address leads, not what may be done there.

use super::error::VirtualReadError;
use crate::memory::PhysicalMemory;

/// `P`: the entry leads somewhere.
const PRESENT: u64 = 1 << 0;
/// `PS`: the entry maps a large page.
const LARGE: u64 = 1 << 7;
/// The physical address in an entry: bits 12 to 51.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bits of an address that one level takes.
const LEVEL_BITS: u32 = 9;
/// Bits of an address within the smallest page.
const PAGE_BITS: u32 = 12;

/// How many levels of page tables there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Levels {
    /// Addresses of 48 bits.
    Four,
    /// Addresses of 57 bits.
    Five,
}

impl Levels {
    /// Bits of an address that choose an entry in the root, and those below.
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
    /// The table whose root lies at that physical address.
    #[must_use]
    pub fn new(memory: &'a M, root: u64, levels: Levels) -> Self {
        Self {
            memory,
            root,
            levels,
        }
    }

    /// Where a virtual address leads: the physical address, and how many bytes from there on lie in the same page.
    /// `None` if it leads nowhere.
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

    /// Copies bytes from a virtual address on.
    ///
    /// # Errors
    /// [`VirtualReadError`] with the first address that leads to none of the memory; `into` holds what comes before.
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

    /// The entry that the low bits of `index` choose, if it leads somewhere.
    fn entry(&self, table: u64, index: u64) -> Option<u64> {
        let mut entry = [0; 8];
        let offset = (index & ((1 << LEVEL_BITS) - 1)) * 8;
        self.memory.read(table + offset, &mut entry).ok()?;
        Some(u64::from_le_bytes(entry)).filter(|entry| entry & PRESENT != 0)
    }
}

/// Are the bits above the lower `bits` all as the highest of these?
fn is_canonical(address: u64, bits: u32) -> bool {
    let above = 64 - bits;
    ((address << above).cast_signed() >> above).cast_unsigned() == address
}
