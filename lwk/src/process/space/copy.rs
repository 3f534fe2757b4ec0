//! Memory of a program that becomes two.
//!
//! Pages are copied when the program forks, not when one of both writes them: then no page that the
//! base is reading or writing changes its owner under it, and none has two.

use alloc::sync::Arc;

use insula_bare::FRAME_SIZE;
use insula_bare::memory::{self, PhysAddr};
use insula_bare::paging::{Page, PageSize};

use super::{Space, order_of};
use crate::memory::{ProgramTables, give_block, has_room, take_for_program};
use crate::process::areas::AreaFlags;
use crate::process::errno::Errno;

impl Space {
    /// Makes an empty space a copy of this one: the same at the same addresses, but for what the
    /// program does not want in copies. Memory that is shared is in both.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]; what there is of the copy is then still to be freed.
    pub fn copy_to(&mut self, copy: &mut Self) -> Result<(), Errno> {
        copy.heap = self.heap;
        copy.limit = self.limit;
        copy.stack = self.stack;
        copy.stack_limit = self.stack_limit;
        copy.mappings_end = self.mappings_end;
        let mut next = 0;
        while let Some(area) = self.areas.next(next) {
            next = area.end;
            if area.flags.contains(AreaFlags::DONT_FORK) {
                continue;
            }
            copy.areas.push(area)?;
            match area.share {
                Some(share) => self.copy_share(copy, share.memory)?,
                None if area.flags.contains(AreaFlags::WIPE_ON_FORK) => {}
                None => self.copy_pages(copy, (area.start, area.end))?,
            }
        }
        Ok(())
    }

    fn copy_share(&self, copy: &mut Self, memory: u64) -> Result<(), Errno> {
        /// Bytes of the kernel's that it takes, at most.
        const SHARE_BYTES: u64 = 1024;
        has_room(SHARE_BYTES)?;
        if let Some(shared) = self.shares.get(&memory) {
            copy.shares.insert(memory, Arc::clone(shared));
        }
        Ok(())
    }

    fn copy_pages(&mut self, copy: &mut Self, (start, end): (u64, u64)) -> Result<(), Errno> {
        let mut next = start;
        while let Some(page) = self.table().next(next, end) {
            copy.add_copy(page)?;
            next = page.start + page.size.bytes();
        }
        Ok(())
    }

    /// Maps a copy of a page: one of the same size, or where there is none as many small ones.
    fn add_copy(&mut self, page: Page) -> Result<(), Errno> {
        if let Some(frame) = take_for_program(order_of(page.size)) {
            return self.map_copy(page, frame);
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
            let frame = take_for_program(0).ok_or(Errno::ENOMEM)?;
            self.map_copy(part, frame)?;
        }
        Ok(())
    }

    fn map_copy(&mut self, page: Page, frame: PhysAddr) -> Result<(), Errno> {
        // SAFETY: the page stays as long as its space is borrowed, and the frame has just been taken.
        unsafe { memory::copy(page.frame, frame, page.size.bytes()) };
        let mapped = self.table().map(Page { frame, ..page }, &mut ProgramTables);
        mapped.map_err(|_| {
            give_block(frame, order_of(page.size));
            Errno::ENOMEM
        })
    }
}
