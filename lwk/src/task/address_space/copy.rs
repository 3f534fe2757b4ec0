//! Copying an address space for fork(2). Parent and child share the frames of private pages, which
//! are copied on write: see [`copy_on_write`](super::copy_on_write).
//!
//! What the base has pinned for I/O must not change its owner, nor have two: the child gets a copy
//! at once. So the parent's pages are protected first; the base unmaps them, and names those that
//! are pinned; and then they are shared.

use alloc::sync::Arc;

use insula_bare::FRAME_SIZE;
use insula_bare::memory::{self, PhysAddr};
use insula_bare::paging::{Page, PageSize};

use crate::hw::memory::frames::{alloc_for_program, free_block, share_block};
use crate::hw::memory::room::has_room;
use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::model::errno::Errno;
use crate::model::vma::{Vma, VmaFlags};
use crate::task::address_space::AddressSpace;
use crate::task::address_space::page::{copied_on_write, flags_of, is_copied_on_write, order_of};
use crate::task::address_space::quarantine::Pinned;
use crate::task::address_space::stop::Invalidation;

/// Whether a child inherits the private pages of a VMA.
fn is_inherited(vma: Vma) -> bool {
    // The child's proxy inherits base mappings.
    let excluded = VmaFlags::DONT_FORK | VmaFlags::WIPE_ON_FORK | VmaFlags::BASE;
    vma.object.is_none() && !vma.flags.intersects(excluded)
}

/// Bound on the kernel memory for an attached shared-memory segment.
const SEGMENT_BYTES: u64 = 1024;

impl AddressSpace {
    /// Has all pages that a child will share be copied on write. Until [`Self::end_fork`] nobody makes
    /// one writable. Returns what the base has to invalidate before [`Self::clone_into`].
    pub fn begin_fork(&mut self) -> Invalidation {
        self.is_forking = true;
        let mut at = 0;
        while let Some(vma) = self.vmas.next(at) {
            at = vma.end;
            if is_inherited(vma) {
                self.protect_inherited(vma);
            }
        }
        let (start, end) = self.bounds;
        self.flush(start, end, true)
    }

    /// Lets threads that have waited write again.
    pub fn end_fork(&mut self) {
        self.is_forking = false;
    }

    fn protect_inherited(&mut self, vma: Vma) {
        let flags = copied_on_write(flags_of(vma.protection));
        let mut next = vma.start;
        while let Some(page) = self.table().next(next, vma.end) {
            next = page.start + page.size.bytes();
            // If the base awaits a page, it would have to ask for it again, at each fork.
            if !is_copied_on_write(&page) && !self.is_awaited(page.start, next) {
                self.table().protect(page.start, flags);
            }
        }
    }

    /// Copies this address space into an empty one, except for ranges that the program excluded.
    /// Shared memory is in both. `pinned` is what the base has reported after
    /// [`Self::begin_fork`].
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]: the caller frees the incomplete copy; [`Errno::EINTR`] if the invalidation
    /// failed: the proxy is exiting.
    pub fn clone_into(&mut self, copy: &mut Self, pinned: &Pinned) -> Result<(), Errno> {
        if *pinned == Pinned::NotInvalidated {
            return Err(Errno::EINTR);
        }
        copy.region = self.region;
        copy.heap = self.heap;
        copy.limit = self.limit;
        copy.stack = self.stack;
        copy.stack_size_limit = self.stack_size_limit;
        copy.mappings_end = self.mappings_end;
        has_room(SEGMENT_BYTES * self.segments.len() as u64)?;
        copy.segments.clone_from(&self.segments);
        let mut next = 0;
        while let Some(vma) = self.vmas.next(next) {
            next = vma.end;
            if vma.flags.contains(VmaFlags::DONT_FORK) {
                continue;
            }
            copy.vmas.push(Vma {
                flags: vma.flags.difference(VmaFlags::LOCKED),
                ..vma
            })?;
            match vma.object {
                Some(object) => self.copy_object(copy, object.number)?,
                None if is_inherited(vma) => self.share_pages(copy, vma, pinned)?,
                None => {}
            }
        }
        Ok(())
    }

    fn copy_object(&self, copy: &mut Self, memory: u64) -> Result<(), Errno> {
        /// Bound on the kernel memory for it.
        const OBJECT_REF_BYTES: u64 = 1024;
        has_room(OBJECT_REF_BYTES)?;
        if let Some(shared) = self.objects.get(&memory) {
            copy.objects.insert(memory, Arc::clone(shared));
        }
        Ok(())
    }

    fn share_pages(&mut self, copy: &mut Self, vma: Vma, pinned: &Pinned) -> Result<(), Errno> {
        let flags = flags_of(vma.protection);
        let mut next = vma.start;
        while let Some(page) = self.table().next(next, vma.end) {
            next = page.start + page.size.bytes();
            let block = (page.frame, order_of(page.size));
            match is_copied_on_write(&page) && !pinned.overlaps(block) {
                true => copy.map_shared_page(Page {
                    flags: copied_on_write(flags),
                    ..page
                })?,
                // Pinned, or awaited since before: the base may write it at any time.
                false => copy.map_page_copy(Page { flags, ..page })?,
            }
        }
        Ok(())
    }

    /// Maps a page of another space, whose frame this one owns as well from now on.
    fn map_shared_page(&mut self, page: Page) -> Result<(), Errno> {
        let order = order_of(page.size);
        share_block(page.frame, order);
        let mapped = self.table().map(page, &mut ProgramTableFrames);
        mapped.map_err(|_| {
            free_block(page.frame, order);
            Errno::ENOMEM
        })
    }

    /// Maps a copy of a page, by small pages if there is no large one.
    fn map_page_copy(&mut self, page: Page) -> Result<(), Errno> {
        if let Some(frame) = alloc_for_program(order_of(page.size)) {
            return self.map_frame_copy(page, frame);
        }
        if page.size == PageSize::Small {
            return Err(Errno::ENOMEM);
        }
        for offset in (0..page.size.bytes()).step_by(FRAME_SIZE as usize) {
            let part = Page {
                start: page.start + offset,
                frame: PhysAddr(page.frame.0 + offset),
                size: PageSize::Small,
                ..page
            };
            let frame = alloc_for_program(0).ok_or(Errno::ENOMEM)?;
            self.map_frame_copy(part, frame)?;
        }
        Ok(())
    }

    fn map_frame_copy(&mut self, page: Page, frame: PhysAddr) -> Result<(), Errno> {
        // SAFETY: the page stays mapped as long as its space is borrowed, and the frame has just
        // been allocated.
        unsafe { memory::copy(page.frame, frame, page.size.bytes()) };
        let mapped = self
            .table()
            .map(Page { frame, ..page }, &mut ProgramTableFrames);
        mapped.map_err(|_| {
            free_block(frame, order_of(page.size));
            Errno::ENOMEM
        })
    }
}
