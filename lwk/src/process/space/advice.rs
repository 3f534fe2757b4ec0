//! What madvise(2) changes: pages that are given back, and what copies of the program will have.

use super::{Area, Release, Space};
use crate::process::areas::AreaFlags;
use crate::process::errno::Errno;

impl Space {
    /// Gives the pages of a range back; the next access finds zeros, or in memory that is shared what
    /// is there. Pages of a file that the program cannot have changed stay: they are what it would
    /// find.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], and nothing has changed, if a file would have to be read again, for what the
    /// program may have changed; [`Errno::ENOMEM`].
    pub fn discard(&mut self, start: u64, end: u64, release: &mut Release) -> Result<(), Errno> {
        let changed = AreaFlags::FILE | AreaFlags::MAY_DIFFER;
        let mut areas = self.areas.within(start, end);
        if areas.any(|area| area.flags.contains(changed)) {
            return Err(Errno::EINVAL);
        }
        drop(areas);
        self.split_at(start)?;
        self.split_at(end)?;
        let mut next = start;
        while let Some(area) = self.areas.first_within(next, end) {
            if !area.flags.intersects(AreaFlags::OF_FILE) {
                self.drop_pages(area.start, area.end, release);
            }
            next = area.end;
        }
        Ok(())
    }

    /// Gives back pages that need not keep their content. They lose it at once, as they may.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if they are not all the program's own; [`Errno::ENOMEM`].
    pub fn free_lazily(
        &mut self,
        start: u64,
        end: u64,
        release: &mut Release,
    ) -> Result<(), Errno> {
        match self.is_own(start, end) {
            true => self.discard(start, end, release),
            false => Err(Errno::EINVAL),
        }
    }

    /// Whether the pages of a range are the program's own, and of no file.
    fn is_own(&self, start: u64, end: u64) -> bool {
        let is_own =
            |area: Area| area.share.is_none() && !area.flags.intersects(AreaFlags::OF_FILE);
        self.areas.within(start, end).all(is_own)
    }

    /// Sets flags of the areas in a range, and clears others.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if [`AreaFlags::WIPE_ON_FORK`] is to be set where pages are not the program's
    /// own; [`Errno::ENOMEM`].
    pub fn set_flags(
        &mut self,
        (start, end): (u64, u64),
        set: AreaFlags,
        clear: AreaFlags,
    ) -> Result<(), Errno> {
        if set.contains(AreaFlags::WIPE_ON_FORK) && !self.is_own(start, end) {
            return Err(Errno::EINVAL);
        }
        self.areas.can_cut(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        self.areas.change(start, end, |area| Area {
            flags: area.flags.difference(clear).union(set),
            ..area
        });
        Ok(())
    }

    /// Says of fresh pages that they have been filled with a file's content up to `filled`, a multiple
    /// of the page size; what follows up to `end` is behind the end of the file. `more` is set as well.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn mark_file(
        &mut self,
        (start, filled, end): (u64, u64, u64),
        more: AreaFlags,
        release: &mut Release,
    ) -> Result<(), Errno> {
        let none = AreaFlags::empty();
        if start < filled {
            self.set_flags((start, filled), more | AreaFlags::FILE, none)?;
        }
        if filled < end {
            self.set_flags((filled, end), more | AreaFlags::PAST_END, none)?;
            self.drop_pages(filled, end, release);
        }
        Ok(())
    }
}
