//! Address space of a program: VMAs, page table, frames.
//!
//! The kernel does not use the program's addresses: it looks the page up, populates it as an access
//! of the program would, and goes through the direct map.

#![allow(
    unsafe_code,
    reason = "a program's frames are accessed through the direct map"
)]

mod access;
mod advice;
mod copy;
mod heap;
mod invalidation;
mod quarantine;
mod remap;
mod stack;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use insula_bare::cpu;
use insula_bare::memory::{self, LARGE_SIZE, PhysAddr};
use insula_bare::paging::{Flags, MapError, Page, PageSize, PageTable};

use super::PAGE;
use super::errno::Errno;
use super::shared_object::{self, SharedObject};
use super::vma::{ObjectRef, Protection, Vma, VmaFlags, VmaMap};
use crate::cores;
use crate::memory::{ProgramTableFrames, alloc_for_program, free_block};

pub use invalidation::{Invalidation, Stop};
pub use quarantine::Pinned;
use quarantine::Quarantine;
pub use remap::{Progress, Target};

/// Allocation orders of pages.
const SMALL_ORDER: u8 = 0;
const LARGE_ORDER: u8 = 9;
/// Lowest address of a program (`vm.mmap_min_addr`): null pointers fault.
const ADDRESS_MIN: u64 = 1 << 16;

/// Address space of a program.
#[derive(Debug)]
pub struct AddressSpace {
    table: Option<PageTable>,
    vmas: VmaMap,
    /// Range of addresses that it may use.
    bounds: (u64, u64),
    /// Freed frames that the base still pins.
    quarantine: Quarantine,
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
            quarantine: Quarantine::default(),
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
        self.bounds.0 <= start && start < end && end <= self.bounds.1
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
        if size == 0 || !size.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        let start = match placement {
            Placement::Hint(hint) => self.choose_address(hint, size)?,
            Placement::Fixed(start) | Placement::FixedNoReplace(start) => start,
        };
        let end = start.checked_add(size).ok_or(Errno::ENOMEM)?;
        if !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        if !self.holds(start, end) {
            return Err(Errno::ENOMEM.into());
        }
        // One more VMA, and another if it splits one.
        self.vmas.has_room(2)?;
        match placement {
            Placement::FixedNoReplace(_) if self.vmas.first_within(start, end).is_some() => {
                return Err(Errno::EEXIST.into());
            }
            Placement::Fixed(_) => self.unmap(start, end)?,
            _ => {}
        }
        if self.vmas.bytes().saturating_add(size) > self.limit {
            return Err(Errno::ENOMEM.into());
        }
        self.vmas.insert(Vma::own(start, end, protection));
        Ok(start)
    }

    /// Maps a new shared-memory object, which children will share.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_shared(
        &mut self,
        placement: Placement,
        size: u64,
        protection: Protection,
    ) -> Result<u64, Stop> {
        self.map_object(SharedObject::new(), placement, (size, protection))
    }

    /// Maps an object of the kernel at a free address.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_kernel_object(
        &mut self,
        shared: Arc<SharedObject>,
        size: u64,
        protection: Protection,
    ) -> Result<u64, Stop> {
        self.map_object(shared, Placement::Hint(0), (size, protection))
    }

    fn map_object(
        &mut self,
        shared: Arc<SharedObject>,
        placement: Placement,
        (size, protection): (u64, Protection),
    ) -> Result<u64, Stop> {
        let start = self.map(placement, size, protection)?;
        self.vmas.insert(Vma {
            object: Some(ObjectRef {
                number: shared.number(),
                base: start,
            }),
            ..Vma::own(start, start + size, protection)
        });
        self.objects.insert(shared.number(), shared);
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
        let (bottom, top) = self.bounds;
        let mut find_gap = |alignment, end| self.vmas.find_gap(size, alignment, bottom, end);
        find_gap(alignment, self.mappings_end)
            .or_else(|| find_gap(PAGE, self.mappings_end))
            .or_else(|| find_gap(PAGE, top))
            .ok_or(Errno::ENOMEM)
    }

    /// Handles a page fault: maps the page of an address for an access.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if the address is not mapped or the access is not allowed; [`Errno::EIO`]
    /// beyond the end of a file; [`Errno::ENOMEM`]; [`Errno::EAGAIN`] while the page is being
    /// unmapped: the access is to be retried.
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
        if self.table().find(address).is_some() {
            // Another thread has mapped it, or this core's TLB entry is stale.
            cpu::flush_tlb_page(address);
            return Ok(());
        }
        if self.table().is_deferred(address) {
            return Err(Errno::EAGAIN);
        }
        let flags = flags_of(vma.protection);
        if let Some(object) = vma.object {
            return self.map_object_page(address & !(PAGE - 1), object, flags);
        }
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

    /// Populates a range, up to the first page that fails.
    ///
    /// # Errors
    /// As of [`AddressSpace::fault`].
    pub fn populate(&mut self, start: u64, end: u64, access: Protection) -> Result<(), Errno> {
        let mut at = start & !(PAGE - 1);
        while at < end {
            if self.table().find(at).is_none() {
                self.fault(at, access)?;
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

    /// Unmaps a range, and frees its frames once nobody can access them.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], [`Errno::ENOMEM`] as of munmap(2).
    pub fn unmap(&mut self, start: u64, end: u64) -> Result<(), Stop> {
        if !start.is_multiple_of(PAGE) || !self.holds(start, end) {
            return Err(Errno::EINVAL.into());
        }
        self.vmas.can_unmap(start, end)?;
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
        let (start, end) = self.bounds;
        self.heap = (0, 0);
        self.stack = (0, 0);
        self.mappings_end = end;
        self.unmap(start, end)
    }

    /// Splits a large page that contains an address, unless it starts there.
    fn split_at(&mut self, address: u64) -> Result<(), Errno> {
        let Some(page) = self.table().find(address) else {
            return Ok(());
        };
        if page.size == PageSize::Small || page.start == address {
            return Ok(());
        }
        self.table()
            .split(address, &mut ProgramTableFrames)
            .map_err(|_| Errno::ENOMEM)?;
        cores::tlb_shootdown(self.root());
        Ok(())
    }

    /// Changes the protection of a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if not all of it is mapped; [`Errno::EACCES`] if write access to the
    /// kernel's pages or to a shared file is requested.
    pub fn protect(&mut self, start: u64, end: u64, protection: Protection) -> Result<(), Stop> {
        if !self.holds(start, end) || !self.vmas.covers(start, end) {
            return Err(Errno::ENOMEM.into());
        }
        let is_kernel_object = |object: ObjectRef| object.number == shared_object::KERNEL_OBJECT;
        let is_write_denied = |vma: Vma| {
            vma.flags.contains(VmaFlags::DENY_WRITE) || vma.object.is_some_and(is_kernel_object)
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
            // Only copies of files have a dirty flag.
            flags: match vma.flags.contains(VmaFlags::FILE_COPY) {
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

    /// Changes the flags of a range's pages. Returns whether any had others.
    fn protect_pages(&mut self, start: u64, end: u64, flags: Flags) -> bool {
        let protection = Flags::USER | Flags::WRITABLE | Flags::NO_EXECUTE;
        let (mut next, mut is_any_changed) = (start, false);
        while let Some(page) = self.table().next(next, end) {
            if page.flags.intersection(protection) != flags {
                self.table().protect(page.start, flags);
                is_any_changed = true;
            }
            next = page.start + page.size.bytes();
        }
        is_any_changed
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

    /// Returns the shared-memory object at an address, and the offset in it.
    #[must_use]
    pub fn object_at(&self, address: u64) -> Option<(u64, u64)> {
        let object = self.vmas.find(address)?.object?;
        Some((object.number, address.wrapping_sub(object.base)))
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

fn order_of(size: PageSize) -> u8 {
    match size {
        PageSize::Small => SMALL_ORDER,
        _ => LARGE_ORDER,
    }
}

/// Without protection bits a page is not accessible to the program, but keeps its content.
fn flags_of(protection: Protection) -> Flags {
    let mut flags = Flags::empty();
    flags.set(Flags::USER, !protection.is_empty());
    flags.set(Flags::WRITABLE, protection.contains(Protection::WRITE));
    flags.set(Flags::NO_EXECUTE, !protection.contains(Protection::EXECUTE));
    flags
}
