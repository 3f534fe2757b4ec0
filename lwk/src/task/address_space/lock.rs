//! Locked memory, as VMAs tell of it.

use crate::model::errno::Errno;
use crate::model::vma::{Lock, Vma, VmaFlags};
use crate::task::address_space::AddressSpace;

impl AddressSpace {
    /// Locks or unlocks all that is mapped in a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn set_locked(&mut self, range: (u64, u64), lock: Option<Lock>) -> Result<(), Errno> {
        let (locked, none) = (VmaFlags::LOCKED, VmaFlags::empty());
        match lock {
            Some(_) => self.set_flags(range, locked, none),
            None => self.set_flags(range, none, locked),
        }
    }

    /// Returns how many bytes of a range of a size are locked.
    #[must_use]
    pub fn locked_bytes_within(&self, start: u64, size: u64) -> u64 {
        let parts = self.vmas.within(start, start.saturating_add(size));
        let locked = parts.filter(|part: &Vma| part.flags.contains(VmaFlags::LOCKED));
        locked.map(|part| part.end - part.start).sum()
    }

    /// Sets how new mappings are locked, if at all.
    pub fn set_lock_of_new(&mut self, lock: Option<Lock>) {
        self.lock_of_new = lock;
    }

    /// Returns how new mappings are locked, if at all.
    #[must_use]
    pub fn lock_of_new(&self) -> Option<Lock> {
        self.lock_of_new
    }
}
