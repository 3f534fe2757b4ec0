//! The heap of brk(2).

use crate::model::vma::{PAGE, Protection};
use crate::task::address_space::stop::Stop;
use crate::task::address_space::{AddressSpace, Placement};

impl AddressSpace {
    /// Sets the start of the heap of brk(2).
    pub fn set_heap(&mut self, start: u64) {
        let start = start.next_multiple_of(PAGE);
        self.heap = (start, start);
    }

    /// Returns start and end of the heap.
    #[must_use]
    pub fn heap(&self) -> (u64, u64) {
        self.heap
    }

    /// Returns the end of the heap.
    #[must_use]
    pub fn heap_end(&self) -> u64 {
        self.heap.1
    }

    /// Moves the end of the heap, if possible. Returns the resulting end.
    ///
    /// # Errors
    /// None but [`Stop::Invalidate`].
    pub fn move_heap_end(&mut self, wanted: u64) -> Result<u64, Stop> {
        let (start, end) = self.heap;
        let (from, to) = (
            end.next_multiple_of(PAGE),
            wanted.saturating_add(PAGE - 1) & !(PAGE - 1),
        );
        if wanted < start {
            return Ok(end);
        }
        let moved = match to.cmp(&from) {
            core::cmp::Ordering::Less => self.unmap(to, from),
            core::cmp::Ordering::Equal => Ok(()),
            // As Linux keeps a page free: a program that leaves could not have its heap there else.
            core::cmp::Ordering::Greater
                if self
                    .vmas
                    .first_within(to, to.saturating_add(PAGE))
                    .is_some() =>
            {
                return Ok(end);
            }
            core::cmp::Ordering::Greater => {
                let protection = Protection::READ | Protection::WRITE;
                self.map(Placement::FixedNoReplace(from), to - from, protection)
                    .map(drop)
            }
        };
        match moved {
            Ok(()) => self.heap.1 = wanted,
            Err(Stop::Error(_)) => {}
            Err(stop) => return Err(stop),
        }
        Ok(self.heap.1)
    }
}
