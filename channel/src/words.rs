//! Memory that a peer may change at any time, as 64-bit words.

#![allow(
    unsafe_code,
    reason = "shared memory is accessed through a raw pointer"
)]

use core::ptr::NonNull;

use crate::sync::{AtomicU64, Ordering};

/// Atomic words in shared memory.
///
/// Indices beyond [`Words::count`] are a bug of the caller; an implementation may panic.
pub trait Words {
    /// Number of words.
    fn count(&self) -> usize;
    /// Loads a word.
    fn load(&self, index: usize, ordering: Ordering) -> u64;
    /// Stores a word.
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

// SAFETY: the memory is only accessed through atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// `count` words from `start` on.
    ///
    /// # Safety
    /// While this value or a copy of it is in use, the words must be mapped for reading and
    /// writing, and this program must only access them through atomics.
    ///
    /// # Panics
    /// If `start` is null or not a multiple of 8.
    #[must_use]
    pub unsafe fn new(start: *mut u64, count: usize) -> Self {
        let start = NonNull::new(start.cast::<AtomicU64>()).expect("address is not null");
        assert!(start.is_aligned(), "address is a multiple of 8");
        Self { start, count }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: 1. the index was checked, so the word is in the memory passed to `new`. 2. A
        // reference to an atomic may exist while others change it.
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
