//! Ranges that were found last. A system call looks the same few VMAs up again and again: Linux had such a cache,
//! too, while it kept them in a tree (`mm/vmacache.c` until 6.0).

use core::cell::Cell;
use core::ops::Range;

/// Entries: code, data, stack and buffers of a program that calls the kernel.
const ENTRIES: usize = 8;
/// Bits of an address that do not choose an entry.
const SHIFT: u32 = 12;

/// What was found in a range of addresses, each in an entry that its address has chosen.
#[derive(Debug)]
pub(super) struct Recent<T: Copy>([Cell<Option<(u64, u64, T)>>; ENTRIES]);

impl<T: Copy> Default for Recent<T> {
    fn default() -> Self {
        Self([const { Cell::new(None) }; ENTRIES])
    }
}

impl<T: Copy> Recent<T> {
    fn entry(&self, address: u64) -> &Cell<Option<(u64, u64, T)>> {
        &self.0[(address >> SHIFT) as usize % ENTRIES]
    }

    /// What was found at an address, if it was.
    pub(super) fn find(&self, address: u64) -> Option<T> {
        let (start, end, found) = self.entry(address).get()?;
        (start <= address && address < end).then_some(found)
    }

    /// Notes what was found at an address, and the range in which it is found.
    pub(super) fn note(&self, address: u64, range: Range<u64>, found: T) {
        self.entry(address)
            .set(Some((range.start, range.end, found)));
    }

    /// Forgets all, since something has changed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
