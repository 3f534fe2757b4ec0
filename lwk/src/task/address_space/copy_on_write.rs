//! Copy on write: after fork(2) parent and child own the frames of their private pages together, and
//! the first of them that writes such a page gets a copy of it.
//!
//! A page that is copied on write has a flag in its entry, and is not writable there. Whether it may
//! be written says its VMA. The base maps no page that has the flag, not even for reading, but asks
//! for it by a remote fault, and gets a page of the program's own: what the base has mapped or pinned
//! has one owner, so a page can be replaced here without asking the base, also in the middle of an
//! access of the kernel itself.

#![allow(unsafe_code, reason = "pages are copied through the direct map")]

use insula_bare::cpu;
use insula_bare::memory;
use insula_bare::paging::{Flags, Page, PageSize};

use crate::hw::memory::frames::{alloc_for_program, free_block, is_shared};
use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::hw::tlb;
use crate::model::errno::Errno;
use crate::model::vma::Protection;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::page::{copied_on_write, flags_of, is_copied_on_write, order_of};

impl AddressSpace {
    /// Makes a page that is copied on write the program's own, and writable if its VMA is.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`]; [`Errno::EAGAIN`] while the page is about to be shared: the child's memory
    /// is that of one moment, so nobody writes until then.
    pub(super) fn own_for_program(&mut self, address: u64) -> Result<(), Errno> {
        match self.is_forking {
            true => Err(Errno::EAGAIN),
            false => self.own(address),
        }
    }

    /// Gives a page that is copied on write a frame of its own: a copy, unless the other owners have
    /// gone. The page is made writable as well, except while it is about to be shared: the kernel
    /// itself writes to the frame.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(super) fn own(&mut self, address: u64) -> Result<(), Errno> {
        let vma = self.vmas.find(address).ok_or(Errno::EFAULT)?;
        let page = self.table().find(address).ok_or(Errno::EFAULT)?;
        debug_assert!(is_copied_on_write(&page));
        let flags = self.flags_of_private(vma.protection);
        if !is_shared(page.frame, order_of(page.size)) {
            self.table().protect(page.start, flags);
            // Other cores may have an entry that denies writing: they will fault and find this one.
            cpu::flush_tlb_page(address);
            return Ok(());
        }
        if page.size == PageSize::Small {
            return self.replace_by_copy(Page { flags, ..page });
        }
        // Most forked children soon execute another program, and write only some pages of their
        // stack and data before. On the emulated machine this costs 0.15 ms, a copy of 2 MiB 0.7;
        // Linux splits, too. A program that goes on writing everywhere pays by more faults.
        self.table()
            .split(address, &mut ProgramTableFrames)
            .map_err(|_| Errno::ENOMEM)?;
        self.own(address)
    }

    /// Returns the flags of a private page that the program or the kernel owns. While pages are about to
    /// be shared none is writable, also none that is new: it may be mapped by a read, and written
    /// without a fault.
    pub(super) fn flags_of_private(&self, protection: Protection) -> Flags {
        match self.is_forking {
            true => copied_on_write(flags_of(protection)),
            false => flags_of(protection),
        }
    }

    /// Replaces a small page by a copy with the flags of `page`.
    fn replace_by_copy(&mut self, page: Page) -> Result<(), Errno> {
        let frame = alloc_for_program(order_of(page.size)).ok_or(Errno::ENOMEM)?;
        // SAFETY: the page stays mapped as long as its space is borrowed, and the frame has just
        // been allocated.
        unsafe { memory::copy(page.frame, frame, page.size.bytes()) };
        self.table().replace(Page { frame, ..page });
        // No thread may still read the old frame when another owner writes it, or when it is free.
        tlb::shootdown(self.root());
        free_block(page.frame, order_of(page.size));
        Ok(())
    }
}
