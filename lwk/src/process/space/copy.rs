//! Memory of a program that becomes two.
//!
//! Pages are copied when the program forks, not when one of both writes them: then no page that the
//! base is reading or writing changes its owner under it, and none has two.

use alloc::vec::Vec;

use insula_bare::FRAME_SIZE;
use insula_bare::memory::{self, PhysAddr};
use insula_bare::paging::{Page, PageSize};

use super::{Area, Space, order_of};
use crate::memory::{Pool, give_block, take_for_program};
use crate::process::errno::Errno;

impl Space {
    /// Makes an empty space a copy of this one: the same at the same addresses. Memory that is
    /// shared is in both.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]; what there is of the copy is then still to be freed.
    pub fn copy_to(&mut self, copy: &mut Self) -> Result<(), Errno> {
        copy.areas = self.areas.clone();
        copy.shares = self.shares.clone();
        copy.heap = self.heap;
        copy.limit = self.limit;
        let own = self.areas.all().iter().filter(|area| area.share.is_none());
        let own: Vec<Area> = own.copied().collect();
        for area in own {
            let mut next = area.start;
            while let Some(page) = self.table().next(next, area.end) {
                copy.add_copy(page)?;
                next = page.start + page.size.bytes();
            }
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
        let mapped = self.table().map(Page { frame, ..page }, &mut Pool);
        mapped.map_err(|_| {
            give_block(frame, order_of(page.size));
            Errno::ENOMEM
        })
    }
}
