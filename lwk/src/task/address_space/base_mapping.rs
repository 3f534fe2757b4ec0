//! Base mappings: ranges whose pages are the base's. The base's module writes their entries of the
//! page table, and clears them at any time (insula_lwk.h, "Base mappings"); this kernel only makes
//! the tables for them.

use insula_abi::lwk::{ACCESS_EXECUTE, ACCESS_WRITE};
use insula_bare::cpu;
use insula_bare::memory::PhysAddr;
use insula_bare::paging::Flags;

use crate::hw::memory::kernel_table;
use crate::hw::memory::room::has_room;
use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::model::errno::Errno;
use crate::model::vma::{PAGE, Protection, Vma, VmaFlags};
use crate::task::address_space::AddressSpace;
use crate::task::address_space::base_access::{MissingPage, note_missing};
use crate::task::address_space::stop::Stop;

impl AddressSpace {
    /// Returns the first part of a range that is a base mapping.
    #[must_use]
    pub fn base_mapping_within(&self, start: u64, end: u64) -> Option<Vma> {
        let mut vmas = self.vmas.within(start, end);
        vmas.find(|vma| vma.flags.contains(VmaFlags::BASE))
    }

    /// Returns the first part of a range that is in one proxy only.
    #[must_use]
    pub fn in_one_proxy_within(&self, start: u64, end: u64) -> Option<Vma> {
        self.vmas.within(start, end).find(Vma::is_in_one_proxy)
    }

    /// Returns what a base mapping is, if it covers a range: protection, and flags of all its parts.
    #[must_use]
    pub fn base_mapping_over(&self, start: u64, end: u64) -> Option<Vma> {
        let mut parts = self.vmas.within(start, end);
        let first = parts.next()?;
        let joined = parts.fold(first, |joined, part| Vma {
            end: part.end,
            flags: joined.flags | part.flags,
            ..joined
        });
        let is_base = |vma: Vma| vma.flags.contains(VmaFlags::BASE);
        let is_over = self.covers(start, end) && self.vmas.within(start, end).all(is_base);
        is_over.then_some(joined)
    }

    /// Whether an address is in a base mapping that others may share.
    #[must_use]
    pub fn is_base_shared(&self, address: u64) -> bool {
        let shared = VmaFlags::BASE | VmaFlags::SHARED;
        let vma = self.vmas.find(address);
        vma.is_some_and(|vma| vma.flags.contains(shared))
    }

    /// Notes that a System V shared-memory segment, or an AIO ring, of that size is attached at an
    /// address. Without
    /// memory for that it cannot be detached.
    pub fn note_segment(&mut self, start: u64, size: u64) {
        /// Bound on the kernel memory for it.
        const SEGMENT_BYTES: u64 = 1024;
        if has_room(SEGMENT_BYTES).is_ok() {
            self.segments.insert(start, size);
        }
    }

    /// Returns the size of the segment that is attached at an address.
    #[must_use]
    pub fn segment_size(&self, start: u64) -> Option<u64> {
        self.segments.get(&start).copied()
    }

    /// Notes that the segment at an address is detached.
    pub fn forget_segment(&mut self, start: u64) {
        self.segments.remove(&start);
    }

    /// Marks what has just been mapped in a range as a base mapping, which the proxy has made.
    /// `flags` are [`VmaFlags::SHARED`] or [`VmaFlags::MAY_BE_DIRTY`].
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn begin_base_mapping(
        &mut self,
        (start, end): (u64, u64),
        flags: VmaFlags,
    ) -> Result<(), Errno> {
        self.set_flags((start, end), flags | VmaFlags::BASE, VmaFlags::empty())
    }

    /// Makes base mappings in a range ordinary memory: the proxy has the mirror there again.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn end_base_mapping(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let flags = VmaFlags::BASE | VmaFlags::SHARED | VmaFlags::MAY_BE_DIRTY;
        self.vmas.can_split(start, end)?;
        let mut next = start;
        while let Some(part) = self.base_mapping_within(next, end) {
            self.set_flags((part.start, part.end), VmaFlags::empty(), flags)?;
            next = part.end;
        }
        Ok(())
    }

    /// Checks that a range has no base mapping, so that it can be unmapped.
    ///
    /// # Errors
    /// [`Stop::BaseMapping`].
    pub(super) fn has_no_base_mapping(&self, start: u64, end: u64) -> Result<(), Stop> {
        match self.base_mapping_within(start, end) {
            Some(part) => Err(Stop::BaseMapping(part.start, part.end)),
            None => Ok(()),
        }
    }

    /// Prepares the page table for a page of a base mapping that an access needs. Returns the
    /// access as the base is told it.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if the address is in no base mapping any more, or the access is not
    /// allowed; [`Errno::ENOMEM`].
    pub fn prepare_base_fault(&mut self, address: u64, access: Protection) -> Result<u64, Errno> {
        let vma = self.vmas.find(address).ok_or(Errno::EFAULT)?;
        if !vma.flags.contains(VmaFlags::BASE) || !vma.protection.contains(access) {
            return Err(Errno::EFAULT);
        }
        let prepared = self.table().prepare(address, &mut ProgramTableFrames);
        prepared.map_err(|_| Errno::ENOMEM)?;
        let mut told = 0;
        if access.contains(Protection::WRITE) {
            told |= ACCESS_WRITE;
        }
        if vma.protection.contains(Protection::EXECUTE) {
            told |= ACCESS_EXECUTE;
        }
        Ok(told)
    }

    /// Returns the first page in the base mappings of a range that the page table lacks for an
    /// access.
    #[must_use]
    pub fn missing_base_page(
        &mut self,
        (start, end): (u64, u64),
        access: Protection,
    ) -> Option<u64> {
        let mut next = start;
        while let Some(part) = self.base_mapping_within(next, end) {
            let mut pages = (part.start..part.end).step_by(PAGE as usize);
            if let Some(missing) = pages.find(|&page| !self.has_base_page(page, access)) {
                return Some(missing);
            }
            next = part.end;
        }
        None
    }

    /// Whether the page table has the page of a base mapping for an access.
    fn has_base_page(&mut self, address: u64, access: Protection) -> bool {
        let page = self.table().find(address);
        let writes = access.contains(Protection::WRITE);
        page.is_some_and(|page| !writes || page.flags.contains(Flags::WRITABLE))
    }

    /// Handles a fault on a page of a base mapping.
    ///
    /// # Errors
    /// [`Errno::EBASEPAGE`]: it has to be faulted in.
    pub(super) fn base_fault(&mut self, address: u64, access: Protection) -> Result<(), Errno> {
        if !self.has_base_page(address, access) {
            return Err(Errno::EBASEPAGE);
        }
        // Another thread has faulted it in, or this core's TLB entry is stale.
        cpu::flush_tlb_page(address);
        Ok(())
    }

    /// Translates an address in a base mapping for an access by the kernel. The base does not take
    /// the page back as long as the space is borrowed.
    ///
    /// # Errors
    /// [`Errno::EBASEPAGE`]: the page has to be faulted in; [`Errno::EFAULT`] for memory of a
    /// device; [`Errno::ENOMEM`].
    pub(super) fn translate_base(
        &mut self,
        vma: &Vma,
        address: u64,
        access: Protection,
    ) -> Result<(PhysAddr, usize), Errno> {
        self.base_access.begin();
        let is_there = self.has_base_page(address, access);
        let Some(page) = self.table().find(address).filter(|_| is_there) else {
            note_missing(MissingPage { address, access });
            return Err(Errno::EBASEPAGE);
        };
        if page.flags.contains(Flags::UNCACHED) {
            return Err(Errno::EFAULT);
        }
        kernel_table::map_base_page(page.frame)?;
        let skip = address % PAGE;
        let room = (PAGE - skip).min(vma.end - address);
        Ok((PhysAddr(page.frame.0 + skip), room as usize))
    }

    /// Lets the base take back the pages that the kernel has accessed.
    pub(crate) fn end_base_access(&mut self) {
        self.base_access.end();
    }
}
