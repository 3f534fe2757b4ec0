//! Address space of a program: VMAs, page table, frames.
//!
//! The kernel does not use the program's addresses: it looks the page up, populates it as an access
//! of the program would, and goes through the direct map.

#![allow(
    unsafe_code,
    reason = "a program's frames are accessed through the direct map"
)]

pub(crate) mod access;
pub(crate) mod advice;
mod awaited;
pub(crate) mod base_access;
pub mod base_mapping;
pub(crate) mod copy;
mod copy_on_write;
pub(crate) mod faults;
pub(crate) mod heap;
pub(crate) mod invalidation;
mod lock;
mod objects;
mod page;
pub mod quarantine;
pub mod registers;
pub mod remap;
mod running;
pub(crate) mod stack;
pub mod stop;
pub mod transfer;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use insula_bare::memory::{LARGE_SIZE, PhysAddr};
use insula_bare::paging::PageTable;

use crate::hw::memory::table_frames::ProgramTableFrames;
use crate::model::errno::Errno;
use crate::model::vma::{Lock, PAGE, Protection, Vma, VmaFlags, VmaMap};
use crate::task::address_space::awaited::Awaited;
use crate::task::address_space::base_access::BaseAccess;
use crate::task::address_space::page::flags_of;
use crate::task::address_space::quarantine::{Pinned, Quarantine};
use crate::task::address_space::stop::Stop;
use crate::task::shared_object::SharedObject;

/// Lowest address of a program (`vm.mmap_min_addr`): null pointers fault.
const ADDRESS_MIN: u64 = 1 << 16;

/// Address space of a program.
#[derive(Debug)]
pub struct AddressSpace {
    table: Option<PageTable>,
    vmas: VmaMap,
    /// Range of addresses that it may use.
    bounds: (u64, u64),
    /// Part of them that is the proxy's own; empty if that lies outside.
    region: (u64, u64),
    /// Freed frames that the base still pins.
    quarantine: Quarantine,
    /// Pages that the base is about to look up.
    awaited: Awaited,
    base_access: BaseAccess,
    /// Sizes of the attached System V shared-memory segments, by address.
    segments: BTreeMap<u64, u64>,
    /// How new mappings are locked, if at all.
    lock_of_new: Option<Lock>,
    /// Its private pages are about to be shared with a child: nobody makes one writable.
    is_forking: bool,
    /// Shared-memory objects that VMAs map, by number.
    objects: BTreeMap<u64, Arc<SharedObject>>,
    /// Start and end of the heap of brk(2).
    heap: (u64, u64),
    /// Limit on the size of all VMAs, in bytes (RLIMIT_AS).
    limit: u64,
    /// Start and end of the main stack, which grows, and the limit on its size.
    stack: (u64, u64),
    stack_size_limit: u64,
    /// Mappings without a fixed address are placed as high as possible below this.
    mappings_end: u64,
}

/// Gap kept free below a growing stack, as on Linux.
pub const STACK_GUARD: u64 = 1 << 20;

/// Where to place a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At this address if it is free; otherwise, or if it is 0, anywhere.
    Hint(u64),
    /// At this address, replacing what is there (MAP_FIXED).
    Fixed(u64),
    /// At this address, if nothing is there (MAP_FIXED_NOREPLACE).
    FixedNoReplace(u64),
}

impl AddressSpace {
    /// Creates an empty address space.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(kernel: &PageTable, bounds: (u64, u64)) -> Result<Self, Errno> {
        let table = PageTable::with_kernel_half_of(kernel, &mut ProgramTableFrames)
            .map_err(|_| Errno::ENOMEM)?;
        let bounds = (
            bounds.0.max(ADDRESS_MIN),
            bounds.1.min(insula_bare::user::USER_END),
        );
        Ok(Self {
            table: Some(table),
            vmas: VmaMap::default(),
            bounds,
            region: (0, 0),
            quarantine: Quarantine::default(),
            awaited: Awaited::default(),
            base_access: BaseAccess::default(),
            segments: BTreeMap::new(),
            lock_of_new: None,
            is_forking: false,
            objects: BTreeMap::new(),
            heap: (0, 0),
            limit: u64::MAX,
            stack: (0, 0),
            stack_size_limit: 0,
            mappings_end: bounds.1,
        })
    }

    fn table(&mut self) -> &mut PageTable {
        self.table
            .as_mut()
            .expect("the table of an address space that is not freed")
    }

    /// Returns the root of its page table.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.table.as_ref().map(PageTable::root).unwrap_or_default()
    }

    /// Returns the range of addresses that it may use.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn holds(&self, start: u64, end: u64) -> bool {
        let is_of_proxy = start < self.region.1 && self.region.0 < end;
        self.bounds.0 <= start && start < end && end <= self.bounds.1 && !is_of_proxy
    }

    /// Returns the address at which a mapping of a size, a multiple of the page size, can be placed.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn place(&mut self, placement: Placement, size: u64) -> Result<u64, Errno> {
        if size == 0 || !size.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let start = match placement {
            Placement::Hint(hint) => self.choose_address(hint, size)?,
            Placement::Fixed(start) | Placement::FixedNoReplace(start) => start,
        };
        let end = start.checked_add(size).ok_or(Errno::ENOMEM)?;
        if !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if !self.holds(start, end) {
            return Err(Errno::ENOMEM);
        }
        // One more VMA, and another if it splits one.
        self.vmas.has_room(2)?;
        match placement {
            Placement::FixedNoReplace(_) if self.vmas.first_within(start, end).is_some() => {
                Err(Errno::EEXIST)
            }
            _ => Ok(start),
        }
    }

    /// Finds the highest free range of a size between two addresses.
    pub(crate) fn find_gap(&mut self, size: u64, bottom: u64, top: u64) -> Option<u64> {
        self.find_aligned_gap(size, PAGE, (bottom, top))
    }

    /// Maps zeroed private memory, of a multiple of the page size. Returns its address.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map(
        &mut self,
        placement: Placement,
        size: u64,
        protection: Protection,
    ) -> Result<u64, Stop> {
        let start = self.place(placement, size)?;
        let end = start + size;
        if let Placement::Fixed(_) = placement {
            self.unmap(start, end)?;
        }
        if self.vmas.bytes().saturating_add(size) > self.limit {
            return Err(Errno::ENOMEM.into());
        }
        self.vmas.insert(Vma::own(start, end, protection));
        Ok(start)
    }

    /// Finds a free range: at the hint if possible, else the highest. Large ranges are aligned to
    /// large pages.
    fn choose_address(&mut self, hint: u64, size: u64) -> Result<u64, Errno> {
        let hint = hint & !(PAGE - 1);
        let end = hint.saturating_add(size);
        if hint != 0 && self.holds(hint, end) && self.vmas.within(hint, end).next().is_none() {
            return Ok(hint);
        }
        let alignment = if size >= LARGE_SIZE { LARGE_SIZE } else { PAGE };
        let ((bottom, top), most) = (self.bounds, self.mappings_end);
        let mut find_gap = |alignment, end| self.find_aligned_gap(size, alignment, (bottom, end));
        find_gap(alignment, most)
            .or_else(|| find_gap(PAGE, most))
            .or_else(|| find_gap(PAGE, top))
            .ok_or(Errno::ENOMEM)
    }

    /// Unmaps a range, and frees its frames once nobody can access them.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], [`Errno::ENOMEM`] as of munmap(2).
    pub fn unmap(&mut self, start: u64, end: u64) -> Result<(), Stop> {
        if !start.is_multiple_of(PAGE) || !self.holds(start, end) {
            return Err(Errno::EINVAL.into());
        }
        self.vmas.can_unmap(start, end)?;
        self.has_no_base_mapping(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        self.drop_pages(start, end)?;
        self.remove_vmas(start, end);
        Ok(())
    }

    /// Removes the VMAs of a range without pages.
    fn remove_vmas(&mut self, start: u64, end: u64) {
        let objects = &mut self.objects;
        let mut unmapped_object = |number| drop(objects.remove(&number));
        self.vmas.remove(start, end, &mut unmapped_object);
    }

    /// Unmaps everything, for execve(2).
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn clear(&mut self) -> Result<(), Stop> {
        self.heap = (0, 0);
        self.stack = (0, 0);
        self.segments.clear();
        self.lock_of_new = None;
        self.mappings_end = self.bounds.1;
        for (start, end) in self.parts() {
            self.unmap(start, end)?;
        }
        Ok(())
    }

    /// Changes the protection of a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if not all of it is mapped: as on Linux, what is before the gap is changed;
    /// [`Errno::EACCES`] if write access to the kernel's pages is requested, or a device's registers are
    /// there.
    pub fn protect(&mut self, start: u64, end: u64, protection: Protection) -> Result<(), Stop> {
        if !self.holds(start, end) {
            return Err(Errno::ENOMEM.into());
        }
        let covered_end = self.vmas.covered_end(start, end);
        if start < covered_end {
            self.protect_mapped(start, covered_end, protection)?;
        }
        match covered_end < end {
            true => Err(Errno::ENOMEM.into()),
            false => Ok(()),
        }
    }

    fn protect_mapped(&mut self, start: u64, end: u64, protection: Protection) -> Result<(), Stop> {
        let is_device = |vma: Vma| vma.flags.contains(VmaFlags::DEVICE);
        if self.vmas.within(start, end).any(is_device) {
            return Err(Errno::EACCES.into());
        }
        let objects = &self.objects;
        let is_write_denied = |vma: Vma| {
            let object = vma.object.and_then(|object| objects.get(&object.number));
            object.is_some_and(|object| !object.is_writable())
        };
        let writes = protection.contains(Protection::WRITE);
        if writes && self.vmas.within(start, end).any(is_write_denied) {
            return Err(Errno::EACCES.into());
        }
        self.vmas.can_split(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        let more = match writes {
            true => VmaFlags::MAY_BE_DIRTY,
            false => VmaFlags::empty(),
        };
        self.vmas.change(start, end, |vma| Vma {
            protection,
            flags: match vma.flags.contains(VmaFlags::FILE_COPY) || vma.is_private_base() {
                true => vma.flags | more,
                false => vma.flags,
            },
            ..vma
        });
        match self.protect_pages(start, end, flags_of(protection)) {
            true => Err(self.invalidation(start, end, true)),
            false => Ok(()),
        }
    }

    /// Limits the size of all VMAs (RLIMIT_AS).
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// Returns the limit on the size of all VMAs, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns its VMAs.
    #[must_use]
    pub fn vmas(&self) -> &VmaMap {
        &self.vmas
    }

    /// Returns the first part of a range that has pages throughout.
    #[must_use]
    pub fn present_range(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
        let first = self.table().next(start, end)?;
        let from = first.start.max(start);
        let mut to = first.start + first.size.bytes();
        while to < end
            && let Some(page) = self.table().find(to)
        {
            to += page.size.bytes();
        }
        Some((from, to.min(end)))
    }

    /// Whether all VMAs in a range allow an access.
    #[must_use]
    pub fn allows(&self, start: u64, end: u64, access: Protection) -> bool {
        let mut vmas = self.vmas.within(start, end);
        vmas.all(|vma| vma.protection.contains(access))
    }

    /// Whether a range is mapped without gaps.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.vmas.covers(start, end)
    }

    /// Frees everything. No core uses the page table, and the base has nothing mapped or pinned.
    pub fn free(&mut self) {
        if self.table.is_none() {
            return;
        }
        let (start, end) = self.bounds;
        self.unmap_deferred_pages(start, end);
        self.free_deferred(start, end, &Pinned::NONE);
        if let Some(table) = self.table.take() {
            table.free_user_half(&mut ProgramTableFrames);
        }
        self.quarantine.free_all();
        self.objects.clear();
    }
}
