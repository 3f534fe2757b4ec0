//! A stack that grows when the program, or a call of its own, reaches below it.

use super::{Area, STACK_GUARD, Space};
use crate::process::PAGE;
use crate::process::errno::Errno;

impl Space {
    /// Says where the stack is, and how large it may become.
    pub fn set_stack(&mut self, stack: (u64, u64), limit: u64) {
        (self.stack, self.stack_limit) = (stack, limit);
    }

    /// Changes how large it may become; it never shrinks.
    pub fn set_stack_limit(&mut self, bytes: u64) {
        self.stack_limit = bytes;
    }

    /// Where the stack begins and ends.
    #[must_use]
    pub fn stack(&self) -> (u64, u64) {
        self.stack
    }

    /// Puts mappings below an address, unless a program says where it wants one.
    pub fn set_mappings_end(&mut self, end: u64) {
        self.mappings_end = end.clamp(self.bounds.0, self.bounds.1);
    }

    /// Lets the stack begin at the page of an address, if it may become so large and meets nothing
    /// else. Its area is then so large.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if not.
    pub(super) fn grow_stack(&mut self, address: u64) -> Result<Area, Errno> {
        let (start, top) = self.stack;
        let page = address & !(PAGE - 1);
        let is_below = page < start && top - page <= self.stack_limit;
        let lowest = page.saturating_sub(STACK_GUARD).max(self.bounds.0);
        let is_free = || self.areas.within(lowest, start).next().is_none();
        let area = self.areas.find(start).filter(|area| area.start == start);
        let (true, Some(area)) = (is_below && lowest < page && is_free(), area) else {
            return Err(Errno::EFAULT);
        };
        if self.areas.bytes().saturating_add(start - page) > self.limit {
            return Err(Errno::EFAULT);
        }
        // It joins that area.
        self.areas.insert(Area {
            start: page,
            end: start,
            ..area
        });
        self.stack.0 = page;
        self.areas.find(page).ok_or(Errno::EFAULT)
    }
}
