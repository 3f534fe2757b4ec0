//! Invalidations: a page is freed only when the base is known not to use it any more.

use insula_bare::paging::Flags;

use crate::hw::tlb;
use crate::model::vma::PAGE;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::awaited::Awaiting;
use crate::task::address_space::page::order_of;
use crate::task::address_space::quarantine::Pinned;
use crate::task::address_space::stop::{Invalidation, Stop};

impl AddressSpace {
    /// Unmaps the pages of a range, unless the base awaits one. If there are any, the base has to
    /// stop using them before they are freed.
    pub(super) fn drop_pages(&mut self, start: u64, end: u64) -> Result<(), Stop> {
        self.can_drop(start, end)?;
        match self.unmap_deferred_pages(start, end) {
            true => Err(self.invalidation(start, end, false)),
            false => Ok(()),
        }
    }

    /// Notes that the base awaits the page of an address.
    pub(crate) fn note_awaited(&mut self, address: u64, awaiting: Awaiting) {
        self.awaited.add(address, awaiting);
    }

    /// Whether the base awaits a page of a range.
    pub(crate) fn is_awaited(&mut self, start: u64, end: u64) -> bool {
        self.awaited.is_any_within(start, end)
    }

    /// Checks that the base awaits no page of a range, so that they can be unmapped.
    ///
    /// # Errors
    /// [`Stop::Awaited`].
    pub(super) fn can_drop(&mut self, start: u64, end: u64) -> Result<(), Stop> {
        match self.is_awaited(start, end) {
            true => Err(Stop::Awaited(start, end)),
            false => Ok(()),
        }
    }

    /// Flushes the TLBs after a change of the page table, and asks for an invalidation.
    pub(super) fn invalidation(&self, start: u64, end: u64, keeps_pages: bool) -> Stop {
        Stop::Invalidate(self.flush(start, end, keeps_pages))
    }

    /// Flushes the TLBs after a change of the page table. Returns what the base has to invalidate.
    pub(super) fn flush(&self, start: u64, end: u64, keeps_pages: bool) -> Invalidation {
        tlb::shootdown(self.root());
        Invalidation {
            start,
            end,
            keeps_pages,
            force: self.quarantine.is_any_pinned(),
        }
    }

    /// Frees what the base no longer uses after an invalidation. Returns whether frames in
    /// quarantine were freed.
    pub fn finish_invalidation(&mut self, range: &Invalidation, pinned: &Pinned) -> bool {
        let is_any_freed = self.quarantine.update(pinned);
        if !range.keeps_pages {
            self.free_deferred(range.start, range.end, pinned);
        }
        is_any_freed
    }

    /// Returns the range whose invalidation tells which frames in quarantine are still pinned;
    /// `None` if none was.
    #[must_use]
    pub fn pinned_probe(&self) -> Option<Invalidation> {
        let (start, _) = self.bounds;
        self.quarantine.is_any_pinned().then_some(Invalidation {
            start,
            end: start + PAGE,
            keeps_pages: true,
            force: true,
        })
    }

    /// Unmaps the pages of a range, but keeps their frames in the page table: a separate list would
    /// need memory, which there may be none of when a program is killed for lack of it. Returns
    /// whether there were pages.
    pub(super) fn unmap_deferred_pages(&mut self, start: u64, end: u64) -> bool {
        let (mut begin, mut is_any) = (start, false);
        while let Some(vma) = self.vmas.first_within(begin, end) {
            let mut next = vma.start;
            while let Some(page) = self.table().next(next, vma.end) {
                if !page.flags.contains(Flags::BASE) {
                    self.table().unmap_deferred(page.start);
                    is_any = true;
                }
                next = page.start + page.size.bytes();
            }
            begin = vma.end;
        }
        is_any
    }

    /// Frees the frames that [`Self::unmap_deferred_pages`] has kept, except for pinned ones.
    pub(super) fn free_deferred(&mut self, start: u64, end: u64, pinned: &Pinned) {
        let mut begin = start;
        while let Some(vma) = self.vmas.first_within(begin, end) {
            let object = vma.object;
            let shared = object.and_then(|object| self.objects.get(&object.number).cloned());
            let mut next = vma.start;
            while let Some(page) = self.table().take_deferred(next, vma.end) {
                next = page.start + page.size.bytes();
                match &shared {
                    Some(shared) => self
                        .quarantine
                        .keep_object_frame(shared, page.frame, pinned),
                    None if object.is_some() => {}
                    None => {
                        let block = (page.frame, order_of(page.size));
                        self.quarantine.free_or_keep(block, pinned);
                    }
                }
            }
            begin = vma.end;
        }
    }
}
