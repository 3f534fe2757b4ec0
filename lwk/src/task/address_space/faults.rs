//! Page faults: mapping pages when they are first accessed.

use insula_bare::cpu;
use insula_bare::memory::{self, LARGE_SIZE};
use insula_bare::paging::{Flags, MapError, Page, PageSize};

use crate::hw::memory::frames::{alloc_for_program, free_block};
use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::hw::tlb;
use crate::model::errno::Errno;
use crate::model::vma::{ObjectRef, PAGE, Protection, Vma, VmaFlags};
use crate::task::address_space::AddressSpace;
use crate::task::address_space::page::{copied_on_write, flags_of, is_copied_on_write, order_of};

impl AddressSpace {
    /// Handles a page fault: maps the page of an address for an access.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if the address is not mapped or the access is not allowed; [`Errno::EIO`]
    /// beyond the end of a file; [`Errno::ENOMEM`]; [`Errno::EAGAIN`] while the page is being
    /// unmapped or about to be shared: the access is to be retried; [`Errno::EBASEPAGE`] if the page
    /// is one of a base mapping, and has to be faulted in.
    pub fn fault(&mut self, address: u64, access: Protection) -> Result<(), Errno> {
        let vma = match self.vmas.find(address) {
            Some(vma) => vma,
            None => self.grow_stack(address)?,
        };
        if !vma.protection.contains(access) || vma.protection.is_empty() {
            return Err(Errno::EFAULT);
        }
        if vma.flags.contains(VmaFlags::BEYOND_EOF) {
            return Err(Errno::EIO);
        }
        if vma.flags.contains(VmaFlags::BASE) {
            return self.base_fault(address, access);
        }
        if let Some(page) = self.table().find(address) {
            if access.contains(Protection::WRITE) && is_copied_on_write(&page) {
                self.own_for_program(address)?;
            }
            // Else another thread has mapped it, or this core's TLB entry is stale.
            cpu::flush_tlb_page(address);
            return Ok(());
        }
        if self.table().is_deferred(address) {
            return Err(Errno::EAGAIN);
        }
        if let Some(object) = vma.object {
            let mut flags = flags_of(vma.protection);
            flags.set(Flags::UNCACHED, vma.flags.contains(VmaFlags::DEVICE));
            return self.map_object_page(address & !(PAGE - 1), object, flags);
        }
        let flags = self.flags_of_private(vma.protection);
        let large = address & !(LARGE_SIZE - 1);
        let fits = vma.start <= large && large + LARGE_SIZE <= vma.end;
        if fits
            && self.table().next(large, large + LARGE_SIZE).is_none()
            && self.map_new_page(large, PageSize::Large, flags).is_ok()
        {
            return Ok(());
        }
        self.map_new_page(address & !(PAGE - 1), PageSize::Small, flags)
    }

    /// Handles a fault of the base, which maps no page that is copied on write, not even for
    /// reading, and none of its own.
    ///
    /// # Errors
    /// As of [`AddressSpace::fault`]; [`Errno::EFAULT`] in a base mapping, and for registers of a device.
    pub fn fault_of_base(&mut self, address: u64, access: Protection) -> Result<(), Errno> {
        let is_device = |vma: Vma| vma.flags.contains(VmaFlags::DEVICE);
        if self.base_mapping_within(address, address + 1).is_some()
            || self.vmas.find(address).is_some_and(is_device)
        {
            return Err(Errno::EFAULT);
        }
        self.fault(address, access)?;
        match self.table().find(address) {
            Some(page) if is_copied_on_write(&page) => self.own_for_program(address),
            _ => Ok(()),
        }
    }

    /// Populates a range, for the program and for the base, up to the first page that fails.
    ///
    /// # Errors
    /// As of [`AddressSpace::fault`].
    pub fn populate(&mut self, start: u64, end: u64, access: Protection) -> Result<(), Errno> {
        let mut at = start & !(PAGE - 1);
        while at < end {
            let vma = self.vmas.find(at);
            if let Some(vma) = vma.filter(|vma| vma.flags.contains(VmaFlags::BASE)) {
                at = vma.end;
                continue;
            }
            let page = self.table().find(at);
            if page.is_none_or(|page| is_copied_on_write(&page)) {
                self.fault_of_base(at, access)?;
            }
            let page = self.table().find(at).ok_or(Errno::EFAULT)?;
            at = page.start + page.size.bytes();
        }
        Ok(())
    }

    /// Maps a page of a shared-memory object.
    fn map_object_page(
        &mut self,
        start: u64,
        object: ObjectRef,
        flags: Flags,
    ) -> Result<(), Errno> {
        let shared = self.objects.get(&object.number);
        let index = start.wrapping_sub(object.base) / PAGE;
        let page = Page {
            start,
            frame: shared.ok_or(Errno::EFAULT)?.frame(index)?,
            size: PageSize::Small,
            flags,
        };
        self.table()
            .map(page, &mut ProgramTableFrames)
            .map_err(|_| Errno::ENOMEM)
    }

    /// Maps a new, zeroed page.
    fn map_new_page(&mut self, start: u64, size: PageSize, flags: Flags) -> Result<(), Errno> {
        let order = order_of(size);
        let frame = alloc_for_program(order).ok_or(Errno::ENOMEM)?;
        // SAFETY: it has just been allocated.
        unsafe { memory::clear(frame, size.bytes()) };
        let page = Page {
            start,
            frame,
            size,
            flags,
        };
        self.table()
            .map(page, &mut ProgramTableFrames)
            .map_err(|error| {
                free_block(frame, order);
                match error {
                    MapError::NoMemory => Errno::ENOMEM,
                    MapError::Occupied => Errno::EEXIST,
                }
            })
    }

    /// Splits a large page that contains an address, unless it starts there.
    pub(super) fn split_at(&mut self, address: u64) -> Result<(), Errno> {
        let Some(page) = self.table().find(address) else {
            return Ok(());
        };
        if page.size == PageSize::Small || page.start == address {
            return Ok(());
        }
        self.table()
            .split(address, &mut ProgramTableFrames)
            .map_err(|_| Errno::ENOMEM)?;
        tlb::shootdown(self.root());
        Ok(())
    }

    /// Changes the flags of a range's pages, but for those of base mappings. Returns whether any had
    /// others.
    pub(super) fn protect_pages(&mut self, start: u64, end: u64, flags: Flags) -> bool {
        let protection = Flags::USER | Flags::WRITABLE | Flags::NO_EXECUTE | Flags::COPY_ON_WRITE;
        let (mut next, mut is_any_changed) = (start, false);
        while let Some(page) = self.table().next(next, end) {
            next = page.start + page.size.bytes();
            if page.flags.contains(Flags::BASE) {
                continue;
            }
            let flags = match is_copied_on_write(&page) {
                true => copied_on_write(flags),
                false => flags,
            };
            if page.flags.intersection(protection) != flags {
                self.table().protect(page.start, flags);
                is_any_changed = true;
            }
        }
        is_any_changed
    }
}
