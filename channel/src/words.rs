//! Memory that a peer may change at any moment, as words of 64 bits.

#![allow(unsafe_code, reason = "shared memory is reached through a raw pointer")]

use core::ptr::NonNull;

use crate::sync::{AtomicU64, Ordering};

/// Words in shared memory, each an atomic.
///
/// Indices beyond [`Words::count`] are a bug of the caller; an implementation may panic.
pub trait Words {
    /// How many there are.
    fn count(&self) -> usize;
    /// Loads one.
    fn load(&self, index: usize, ordering: Ordering) -> u64;
    /// Stores one.
    fn store(&self, index: usize, value: u64, ordering: Ordering);
}

impl<W: Words + ?Sized> Words for &W {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        (**self).load(index, ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        (**self).store(index, value, ordering);
    }
}

impl Words for [AtomicU64] {
    fn count(&self) -> usize {
        self.len()
    }

    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self[index].load(ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        self[index].store(value, ordering);
    }
}

/// Memory at an address, shared with another process or kernel.
#[derive(Clone, Copy, Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it is reached through atomics only.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// `count` words from `start` on.
    ///
    /// # Safety
    /// As long as this value or a copy of it is used, the words are mapped for reading and writing,
    /// and this program reaches them through atomics only.
    ///
    /// # Panics
    /// If `start` is null or not a multiple of 8.
    #[must_use]
    pub unsafe fn new(start: *mut u64, count: usize) -> Self {
        let start = NonNull::new(start.cast::<AtomicU64>()).expect("memory has an address");
        assert!(start.is_aligned(), "words lie at multiples of 8");
        Self { start, count }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: 1. the index was checked, so the word is one of those that `new` was promised.
        // 2. A reference to an atomic may be made though others change it.
        unsafe { self.start.add(index).as_ref() }
    }
}

impl Words for SharedWords {
    fn count(&self) -> usize {
        self.count
    }

    fn load(&self, index: usize, ordering: Ordering) -> u64 {
        self.word(index).load(ordering)
    }

    fn store(&self, index: usize, value: u64, ordering: Ordering) {
        self.word(index).store(value, ordering);
    }
}
