//! mremap(2): resizing and moving mappings.

use insula_bare::memory::LARGE_SIZE;
use insula_bare::paging::{Page, PageSize};

use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::model::errno::Errno;
use crate::model::vma::{ObjectRef, PAGE, Vma, VmaFlags};
use crate::task::address_space::stop::Stop;
use crate::task::address_space::{AddressSpace, Placement};

/// Where a mapping may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// It stays.
    InPlace,
    /// It moves if it cannot stay (MREMAP_MAYMOVE).
    MayMove,
    /// To this address, replacing what is there (MREMAP_FIXED).
    Fixed(u64),
}

/// How far mremap(2) has got, as it is called again after each invalidation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Nothing is moved.
    #[default]
    Start,
    /// The arguments are checked.
    Checked,
    /// All is moved, or nothing could be: the result.
    Moved(Result<u64, Errno>),
}

impl AddressSpace {
    /// Resizes a mapping, and moves it if needed; its pages keep their content. Returns its
    /// address.
    ///
    /// # Errors
    /// As of mremap(2). The mapping is as it was, but the target range may have been unmapped, and
    /// what is beyond the new size.
    pub fn remap(
        &mut self,
        (start, end): (u64, u64),
        size: u64,
        target: Target,
        progress: &mut Progress,
    ) -> Result<u64, Stop> {
        if let Progress::Moved(result) = *progress {
            return Ok(result?);
        }
        let grown = start.checked_add(size).ok_or(Errno::ENOMEM)?;
        if *progress == Progress::Start {
            self.check_remap((start, end), size, target)?;
            *progress = Progress::Checked;
        }
        let vma = self.vmas.find(start).ok_or(Errno::EFAULT)?;
        if grown < end {
            self.unmap(grown, end)?;
        }
        match target {
            Target::Fixed(to) => self.move_to(vma, (start, end.min(grown)), (to, size), progress),
            _ if grown <= end => Ok(start),
            _ => self.grow(vma, (start, end), grown, target, progress),
        }
    }

    /// Checks the arguments of mremap(2).
    fn check_remap(
        &self,
        (start, end): (u64, u64),
        size: u64,
        target: Target,
    ) -> Result<(), Errno> {
        let vma = self.vmas.find(start).ok_or(Errno::EFAULT)?;
        if !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if vma.end < end {
            return Err(Errno::EFAULT);
        }
        if vma.flags.contains(VmaFlags::DEVICE) {
            return Err(Errno::EINVAL);
        }
        if vma.flags.contains(VmaFlags::BASE) {
            // Another thread has just mapped it: the base moves base mappings.
            return Err(Errno::EFAULT);
        }
        // One more VMA, and others if it splits some.
        self.vmas.has_room(4)?;
        if size > end - start && vma.flags.intersects(VmaFlags::ANY_FILE) {
            // It would have to read more of the file.
            return Err(Errno::ENOMEM);
        }
        let Target::Fixed(to) = target else {
            return Ok(());
        };
        let to_end = to.checked_add(size).ok_or(Errno::EINVAL)?;
        match to < end && start < to_end {
            true => Err(Errno::EINVAL),
            false => Ok(()),
        }
    }

    /// Grows a mapping in place, or else moves it if that is allowed.
    fn grow(
        &mut self,
        vma: Vma,
        (start, end): (u64, u64),
        grown: u64,
        target: Target,
        progress: &mut Progress,
    ) -> Result<u64, Stop> {
        if self.holds(end, grown) && self.vmas.within(end, grown).next().is_none() {
            self.vmas.insert(Vma {
                start: end,
                end: grown,
                ..vma
            });
            return Ok(start);
        }
        match target {
            Target::MayMove => {
                let size = grown - start;
                let to = self.choose_address(0, size)?;
                self.move_to(vma, (start, end), (to, size), progress)
            }
            _ => Err(Errno::ENOMEM.into()),
        }
    }

    /// Moves a mapping, which is not larger than its target.
    fn move_to(
        &mut self,
        vma: Vma,
        (start, end): (u64, u64),
        (to, size): (u64, u64),
        progress: &mut Progress,
    ) -> Result<u64, Stop> {
        let to_end = to.checked_add(size).ok_or(Errno::EINVAL)?;
        self.map(Placement::Fixed(to), size, vma.protection)?;
        let distance = to.wrapping_sub(start);
        self.vmas.insert(Vma {
            start: to,
            end: to_end,
            object: vma.object.map(|object| ObjectRef {
                base: object.base.wrapping_add(distance),
                ..object
            }),
            ..vma
        });
        let moved = self
            .split_at(start)
            .and_then(|()| self.split_at(end))
            .and_then(|()| self.move_pages(start, to, end - start));
        // What has no pages any more, as they were moved, or moved back.
        match moved {
            Ok(()) => self.remove_vmas(start, end),
            Err(_) => self.remove_vmas(to, to_end),
        }
        *progress = Progress::Moved(moved.map(|()| to));
        // The program keeps all pages: the base only has to look them up again, and to report which
        // are pinned.
        Err(self.invalidation(start, end, true))
    }

    /// Moves pages: all or none.
    fn move_pages(&mut self, from: u64, to: u64, size: u64) -> Result<(), Errno> {
        let distance = to.wrapping_sub(from);
        let mut next = from;
        while let Some(page) = self.table().next(next, from + size) {
            if let Err(error) = self.move_page(page, distance) {
                // The page tables at the old address still exist.
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

    /// Moves a page, or the first part of a large one that would be misaligned.
    fn move_page(&mut self, page: Page, distance: u64) -> Result<(), Errno> {
        let is_large = page.size != PageSize::Small;
        if is_large && !distance.is_multiple_of(LARGE_SIZE) {
            self.table()
                .split(page.start, &mut ProgramTableFrames)
                .map_err(|_| Errno::ENOMEM)?;
        }
        let page = self.table().unmap(page.start).ok_or(Errno::EFAULT)?;
        let moved = Page {
            start: page.start.wrapping_add(distance),
            ..page
        };
        if self.table().map(moved, &mut ProgramTableFrames).is_ok() {
            return Ok(());
        }
        // There is a page table at the target: move it as small pages.
        self.table()
            .map(page, &mut ProgramTableFrames)
            .map_err(|_| Errno::ENOMEM)?;
        if page.size == PageSize::Small {
            return Err(Errno::ENOMEM);
        }
        self.table()
            .split(page.start, &mut ProgramTableFrames)
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
