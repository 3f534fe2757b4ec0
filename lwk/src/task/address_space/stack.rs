//! The main stack, which grows on access.

use crate::model::errno::Errno;
use crate::model::vma::{PAGE, Vma, VmaFlags};
use crate::task::address_space::{AddressSpace, STACK_GUARD};

impl AddressSpace {
    /// Sets the stack and the limit on its size, in bytes.
    pub fn set_stack(&mut self, stack: (u64, u64), limit: u64) {
        (self.stack, self.stack_size_limit) = (stack, limit);
    }

    /// Changes the limit; the stack never shrinks.
    pub fn set_stack_size_limit(&mut self, bytes: u64) {
        self.stack_size_limit = bytes;
    }

    /// Returns start and end of the stack.
    #[must_use]
    pub fn stack(&self) -> (u64, u64) {
        self.stack
    }

    /// Places mappings without a fixed address below `end`.
    pub fn set_mappings_end(&mut self, end: u64) {
        self.mappings_end = end.clamp(self.bounds.0, self.bounds.1);
    }

    /// Grows the stack down to the page of an address, if the limit and the stack guard gap allow
    /// it. Returns its VMA.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if it cannot grow so far.
    pub(super) fn grow_stack(&mut self, address: u64) -> Result<Vma, Errno> {
        let (start, top) = self.stack;
        let page = address & !(PAGE - 1);
        let is_below = page < start && top - page <= self.stack_size_limit;
        let lowest = page.saturating_sub(STACK_GUARD).max(self.bounds.0);
        let is_free = || self.vmas.within(lowest, start).next().is_none();
        let vma = self.vmas.find(start).filter(|vma| vma.start == start);
        let (true, Some(vma)) = (is_below && lowest < page && is_free(), vma) else {
            return Err(Errno::EFAULT);
        };
        if self.vmas.bytes().saturating_add(start - page) > self.limit {
            return Err(Errno::EFAULT);
        }
        // It is merged with that VMA, unless that is the base's.
        let of_base = VmaFlags::BASE | VmaFlags::MAY_BE_DIRTY;
        let flags = match vma.flags.contains(VmaFlags::BASE) {
            true => vma.flags.difference(of_base),
            false => vma.flags,
        };
        self.vmas.insert(Vma {
            start: page,
            end: start,
            flags,
            ..vma
        });
        self.stack.0 = page;
        self.vmas.find(page).ok_or(Errno::EFAULT)
    }
}
