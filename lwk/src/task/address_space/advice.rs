//! madvise(2): discarding pages, and VMA flags.

use crate::model::errno::Errno;
use crate::model::vma::{Vma, VmaFlags};
use crate::task::address_space::AddressSpace;
use crate::task::address_space::stop::Stop;

impl AddressSpace {
    /// Discards the pages of a range. The next access finds zeros or, in shared memory, its
    /// content. Pages of a file that the program cannot have changed are kept, as the program would
    /// read the same again.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], with nothing changed, if changed pages of a file would have to be read
    /// again; [`Errno::ENOMEM`].
    pub fn discard(&mut self, start: u64, end: u64) -> Result<(), Stop> {
        let changed = VmaFlags::FILE_COPY | VmaFlags::MAY_BE_DIRTY;
        let is_changed = |vma: Vma| vma.flags.contains(changed);
        if self.vmas.within(start, end).any(is_changed) {
            return Err(Errno::EINVAL.into());
        }
        self.can_drop(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        let (mut next, mut is_any) = (start, false);
        while let Some(vma) = self.vmas.first_within(next, end) {
            if !vma.flags.intersects(VmaFlags::ANY_FILE) {
                is_any |= self.unmap_deferred_pages(vma.start, vma.end);
            }
            next = vma.end;
        }
        match is_any {
            true => Err(self.invalidation(start, end, false)),
            false => Ok(()),
        }
    }

    /// Frees pages that need not keep their content; at once, which MADV_FREE permits.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] unless all pages are private and anonymous; [`Errno::ENOMEM`].
    pub fn free_lazily(&mut self, start: u64, end: u64) -> Result<(), Stop> {
        match self.is_private(start, end) {
            true => self.discard(start, end),
            false => Err(Errno::EINVAL.into()),
        }
    }

    /// Whether a range has only private anonymous pages.
    fn is_private(&self, start: u64, end: u64) -> bool {
        let is_private =
            |vma: Vma| vma.object.is_none() && !vma.flags.intersects(VmaFlags::ANY_FILE);
        self.vmas.within(start, end).all(is_private)
    }

    /// Sets and clears flags of the VMAs in a range.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if [`VmaFlags::WIPE_ON_FORK`] is to be set for pages that are not private
    /// and anonymous, or if others than the program's own instructions are to access a device's registers;
    /// [`Errno::ENOMEM`].
    pub fn set_flags(
        &mut self,
        (start, end): (u64, u64),
        set: VmaFlags,
        clear: VmaFlags,
    ) -> Result<(), Errno> {
        if set.contains(VmaFlags::WIPE_ON_FORK) && !self.is_private(start, end) {
            return Err(Errno::EINVAL);
        }
        let is_device = |vma: Vma| vma.flags.contains(VmaFlags::DEVICE);
        if clear.intersects(VmaFlags::DONT_FORK | VmaFlags::DONT_DUMP)
            && self.vmas.within(start, end).any(is_device)
        {
            return Err(Errno::EINVAL);
        }
        self.vmas.can_split(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        self.vmas.change(start, end, |vma| Vma {
            flags: vma.flags.difference(clear).union(set),
            ..vma
        });
        Ok(())
    }

    /// Marks a mapping whose pages up to `filled`, a multiple of the page size, contain a file's
    /// content; from there to `end` it is beyond the end of the file. Sets the flags `more` as
    /// well.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn mark_file(
        &mut self,
        (start, filled, end): (u64, u64, u64),
        more: VmaFlags,
    ) -> Result<(), Stop> {
        let none = VmaFlags::empty();
        if start < filled {
            self.set_flags((start, filled), more | VmaFlags::FILE_COPY, none)?;
        }
        if filled < end {
            self.set_flags((filled, end), more | VmaFlags::BEYOND_EOF, none)?;
            self.drop_pages(filled, end)?;
        }
        Ok(())
    }
}
