//! Copying an address space for fork(2).
//!
//! Pages are copied at once, not on write: a page that the base has pinned for I/O must not change
//! its owner, nor have two.

use alloc::sync::Arc;

use insula_bare::FRAME_SIZE;
use insula_bare::memory::{self, PhysAddr};
use insula_bare::paging::{Page, PageSize};

use crate::hw::memory::frames::{alloc_for_program, free_block};
use crate::hw::memory::room::has_room;
use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::model::errno::Errno;
use crate::model::vma::VmaFlags;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::page::order_of;

/// Bound on the kernel memory for an attached shared-memory segment.
const SEGMENT_BYTES: u64 = 1024;

impl AddressSpace {
    /// Copies this address space into an empty one, except for ranges that the program excluded.
    /// Shared memory is in both.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]; the caller frees the incomplete copy.
    pub fn clone_into(&mut self, copy: &mut Self) -> Result<(), Errno> {
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
            copy.vmas.push(vma)?;
            match vma.object {
                Some(object) => self.copy_object(copy, object.number)?,
                // The child's proxy inherits base mappings.
                None if vma
                    .flags
                    .intersects(VmaFlags::WIPE_ON_FORK | VmaFlags::BASE) => {}
                None => self.copy_pages(copy, (vma.start, vma.end))?,
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

    fn copy_pages(&mut self, copy: &mut Self, (start, end): (u64, u64)) -> Result<(), Errno> {
        let mut next = start;
        while let Some(page) = self.table().next(next, end) {
            copy.map_page_copy(page)?;
            next = page.start + page.size.bytes();
        }
        Ok(())
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
