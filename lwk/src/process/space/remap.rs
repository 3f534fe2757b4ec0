//! Memory that becomes larger or smaller, or goes to other addresses: mremap(2).

use insula_bare::memory::LARGE_SIZE;
use insula_bare::paging::{Page, PageSize};

use super::{Place, Release, Space};
use crate::cores;
use crate::memory::ProgramTables;
use crate::process::areas::{Area, AreaFlags, Share};
use crate::process::errno::Errno;

/// Where memory may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It stays.
    Here,
    /// Anywhere, if it cannot stay.
    Anywhere,
    /// Just there, in the place of what is there.
    At(u64),
}

impl Space {
    /// Gives a range another size; its pages keep their content. Where it is then.
    ///
    /// # Errors
    /// As of mremap(2). What was there is as it was, but for what lay at the target.
    pub fn remap(
        &mut self,
        (start, end): (u64, u64),
        size: u64,
        target: Target,
        release: &mut Release,
    ) -> Result<u64, Errno> {
        let area = self.areas.find(start).ok_or(Errno::EFAULT)?;
        if !start.is_multiple_of(super::PAGE) {
            return Err(Errno::EINVAL);
        }
        if area.end < end {
            return Err(Errno::EFAULT);
        }
        // One area more, and others where it cuts one in two.
        self.areas.can_hold(4)?;
        let grown = start.checked_add(size).ok_or(Errno::ENOMEM)?;
        if grown > end && area.flags.intersects(AreaFlags::OF_FILE) {
            // More of the file would have to be read.
            return Err(Errno::ENOMEM);
        }
        if let Target::At(to) = target {
            return self.move_to(area, (start, end), (to, size), release);
        }
        if grown <= end {
            if grown < end {
                self.unmap(grown, end, release)?;
            }
            return Ok(start);
        }
        if self.holds(end, grown) && self.areas.within(end, grown).next().is_none() {
            self.areas.insert(Area {
                start: end,
                end: grown,
                ..area
            });
            return Ok(start);
        }
        match target {
            Target::Anywhere => {
                let to = self.choose(0, size)?;
                self.move_to(area, (start, end), (to, size), release)
            }
            _ => Err(Errno::ENOMEM),
        }
    }

    fn move_to(
        &mut self,
        area: Area,
        (start, end): (u64, u64),
        (to, size): (u64, u64),
        release: &mut Release,
    ) -> Result<u64, Errno> {
        let to_end = to.checked_add(size).ok_or(Errno::EINVAL)?;
        if to < end && start < to_end {
            return Err(Errno::EINVAL);
        }
        self.map(Place::At(to), size, area.rights, release)?;
        let distance = to.wrapping_sub(start);
        self.areas.insert(Area {
            start: to,
            end: to_end,
            share: area.share.map(|share| Share {
                base: share.base.wrapping_add(distance),
                ..share
            }),
            ..area
        });
        let kept = (end - start).min(size);
        let moved = self
            .split_at(start)
            .and_then(|()| self.split_at(start + kept))
            .and_then(|()| self.move_pages(start, to, kept));
        // Pages that have gone, to where they are wanted or back, are the program's in any case: the
        // base has only to look them up anew, and to say which of them are pinned.
        cores::forget_all(self.root());
        self.invalidate((start, start + kept), true, release);
        if let Err(error) = moved {
            self.unmap(to, to_end, release)?;
            return Err(error);
        }
        self.unmap(start, end, release)?;
        Ok(to)
    }

    /// Moves pages, all of them or none.
    fn move_pages(&mut self, from: u64, to: u64, size: u64) -> Result<(), Errno> {
        let distance = to.wrapping_sub(from);
        let mut next = from;
        while let Some(page) = self.table().next(next, from + size) {
            if let Err(error) = self.move_page(page, distance) {
                // Tables for these are there, where they came from.
                let back = self.move_pages(to, from, next - from);
                debug_assert!(back.is_ok());
                return Err(error);
            }
            next = self
                .table()
                .find(page.start.wrapping_add(distance))
                .map_or(page.start + page.size.bytes(), |moved| {
                    page.start + moved.size.bytes()
                });
        }
        Ok(())
    }

    /// Moves a page, or the first part of one that would not be aligned.
    fn move_page(&mut self, page: Page, distance: u64) -> Result<(), Errno> {
        let is_large = page.size != PageSize::Small;
        if is_large && !distance.is_multiple_of(LARGE_SIZE) {
            self.table()
                .split(page.start, &mut ProgramTables)
                .map_err(|_| Errno::ENOMEM)?;
        }
        let page = self.table().unmap(page.start).ok_or(Errno::EFAULT)?;
        let moved = Page {
            start: page.start.wrapping_add(distance),
            ..page
        };
        if self.table().map(moved, &mut ProgramTables).is_ok() {
            return Ok(());
        }
        // A large page where there is a table: as small ones.
        self.table()
            .map(page, &mut ProgramTables)
            .map_err(|_| Errno::ENOMEM)?;
        if page.size == PageSize::Small {
            return Err(Errno::ENOMEM);
        }
        self.table()
            .split(page.start, &mut ProgramTables)
            .map_err(|_| Errno::ENOMEM)?;
        self.move_page(
            Page {
                size: PageSize::Small,
                ..page
            },
            distance,
        )
    }
}
