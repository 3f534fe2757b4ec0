//! A program's memory: its areas, its page table, its frames.
//!
//! The kernel never reaches a program's memory by the program's addresses: it looks the page up (and
//! makes it present, as the program's own access would) and goes through the direct map.

#![allow(
    unsafe_code,
    reason = "a program's frames are reached through the direct map"
)]

mod access;
mod advice;
mod copy;
mod quarantine;
mod remap;
mod stack;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use insula_bare::cpu;
use insula_bare::memory::{self, LARGE_SIZE, PhysAddr};
use insula_bare::paging::{Flags, MapError, Page, PageSize, PageTable};

use super::PAGE;
use super::areas::{Area, AreaFlags, Areas, Rights, Share};
use super::errno::Errno;
use super::shared::{self, Shared};
use crate::cores;
use crate::memory::{ProgramTables, give_block, take_for_program};

pub use quarantine::Pinned;
use quarantine::Quarantine;
pub use remap::Target;

/// Orders of blocks for pages.
const SMALL_ORDER: u8 = 0;
const LARGE_ORDER: u8 = 9;
/// A program has no page at the very beginning, so that a null pointer is a fault.
const ADDRESS_MIN: u64 = 1 << 16;

/// Has the base let go of a range: what of the program's is pinned then.
pub type Release<'a> = dyn FnMut(Invalidation) -> Pinned + 'a;

/// A range that the base is to let go of.
#[derive(Clone, Copy, Debug)]
pub struct Invalidation {
    /// Where it begins.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
    /// The pages stay the program's: nobody waits for I/O under way.
    pub keeps_pages: bool,
    /// The base is to be asked even if it reaches nothing of it.
    pub is_needed: bool,
}

/// A program's memory.
#[derive(Debug)]
pub struct Space {
    table: Option<PageTable>,
    areas: Areas,
    /// All addresses that it may have.
    bounds: (u64, u64),
    /// Pages that it has given back and that something of the base pins.
    quarantine: Quarantine,
    /// The memories that areas show, by number.
    shares: BTreeMap<u64, Arc<Shared>>,
    /// Start and end of the heap that brk(2) moves.
    heap: (u64, u64),
    /// Most bytes that its areas may have.
    limit: u64,
    /// Where the stack begins and ends that grows by itself, and how large it may become.
    stack: (u64, u64),
    stack_limit: u64,
    /// Where mappings are put, if not told where: the highest below this.
    mappings_end: u64,
}

/// Bytes below a stack that nothing else has when it grows: as on Linux.
pub const STACK_GUARD: u64 = 1 << 20;

/// Where a mapping is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Anywhere; near this address if it is not 0.
    Near(u64),
    /// Just there, in the place of what is there.
    At(u64),
    /// Just there, unless something is.
    AtIfFree(u64),
}

impl Space {
    /// An empty one.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(kernel: &PageTable, bounds: (u64, u64)) -> Result<Self, Errno> {
        let table =
            PageTable::with_kernel_of(kernel, &mut ProgramTables).map_err(|_| Errno::ENOMEM)?;
        let bounds = (
            bounds.0.max(ADDRESS_MIN),
            bounds.1.min(insula_bare::user::USER_END),
        );
        Ok(Self {
            table: Some(table),
            areas: Areas::default(),
            bounds,
            quarantine: Quarantine::default(),
            shares: BTreeMap::new(),
            heap: (0, 0),
            limit: u64::MAX,
            stack: (0, 0),
            stack_limit: 0,
            mappings_end: bounds.1,
        })
    }

    fn table(&mut self) -> &mut PageTable {
        self.table
            .as_mut()
            .expect("a space has a table until it is freed")
    }

    /// Where its page table is.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.table.as_ref().map(PageTable::root).unwrap_or_default()
    }

    /// The addresses that it may have.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        self.bounds
    }

    fn holds(&self, start: u64, end: u64) -> bool {
        self.bounds.0 <= start && start < end && end <= self.bounds.1
    }

    /// Maps memory that is zero, of a multiple of the page size; where it is.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map(
        &mut self,
        place: Place,
        size: u64,
        rights: Rights,
        release: &mut Release,
    ) -> Result<u64, Errno> {
        if size == 0 || !size.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        let start = match place {
            Place::Near(hint) => self.choose(hint, size)?,
            Place::At(start) | Place::AtIfFree(start) => start,
        };
        let end = start.checked_add(size).ok_or(Errno::ENOMEM)?;
        if !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL);
        }
        if !self.holds(start, end) {
            return Err(Errno::ENOMEM);
        }
        // One area more, and another where it cuts one in two.
        self.areas.can_hold(2)?;
        match place {
            Place::AtIfFree(_) if self.areas.first_within(start, end).is_some() => {
                return Err(Errno::EEXIST);
            }
            Place::At(_) => self.unmap(start, end, release)?,
            _ => {}
        }
        if self.areas.bytes().saturating_add(size) > self.limit {
            return Err(Errno::ENOMEM);
        }
        self.areas.insert(Area::own(start, end, rights));
        Ok(start)
    }

    /// The same of memory that copies of the program will have as well.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_shared(
        &mut self,
        place: Place,
        size: u64,
        rights: Rights,
        release: &mut Release,
    ) -> Result<u64, Errno> {
        self.map_as(Shared::new(), place, (size, rights), release)
    }

    /// The same of what is the kernel's, anywhere.
    ///
    /// # Errors
    /// As of mmap(2).
    pub fn map_kernels(
        &mut self,
        shared: Arc<Shared>,
        size: u64,
        rights: Rights,
        release: &mut Release,
    ) -> Result<u64, Errno> {
        self.map_as(shared, Place::Near(0), (size, rights), release)
    }

    fn map_as(
        &mut self,
        shared: Arc<Shared>,
        place: Place,
        (size, rights): (u64, Rights),
        release: &mut Release,
    ) -> Result<u64, Errno> {
        let start = self.map(place, size, rights, release)?;
        self.areas.insert(Area {
            share: Some(Share {
                memory: shared.number(),
                base: start,
            }),
            ..Area::own(start, start + size, rights)
        });
        self.shares.insert(shared.number(), shared);
        Ok(start)
    }

    /// A free range: at the hint if that is free, else the highest. Large ones begin at a large page.
    fn choose(&mut self, hint: u64, size: u64) -> Result<u64, Errno> {
        let hint = hint & !(PAGE - 1);
        let end = hint.saturating_add(size);
        if hint != 0 && self.holds(hint, end) && self.areas.within(hint, end).next().is_none() {
            return Ok(hint);
        }
        let alignment = if size >= LARGE_SIZE { LARGE_SIZE } else { PAGE };
        let (bottom, top) = self.bounds;
        let mut gap = |alignment, end| self.areas.gap(size, alignment, bottom, end);
        gap(alignment, self.mappings_end)
            .or_else(|| gap(PAGE, self.mappings_end))
            .or_else(|| gap(PAGE, top))
            .ok_or(Errno::ENOMEM)
    }

    /// Makes the page of an address present, as an access needs it.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if there is no such memory, or the access is not allowed; [`Errno::EIO`] if it
    /// is behind the end of a file; [`Errno::ENOMEM`].
    pub fn fault(&mut self, address: u64, access: Rights) -> Result<(), Errno> {
        let area = match self.areas.find(address) {
            Some(area) => area,
            None => self.grow_stack(address)?,
        };
        if !area.rights.contains(access) || area.rights.is_empty() {
            return Err(Errno::EFAULT);
        }
        if area.flags.contains(AreaFlags::PAST_END) {
            return Err(Errno::EIO);
        }
        if self.table().find(address).is_some() {
            // Another thread was faster, or this core's memory of it is old.
            cpu::forget_page(address);
            return Ok(());
        }
        let flags = flags_of(area.rights);
        if let Some(share) = area.share {
            return self.show(address & !(PAGE - 1), share, flags);
        }
        let large = address & !(LARGE_SIZE - 1);
        let fits = area.start <= large && large + LARGE_SIZE <= area.end;
        if fits
            && self.table().next(large, large + LARGE_SIZE).is_none()
            && self.add(large, PageSize::Large, flags).is_ok()
        {
            return Ok(());
        }
        self.add(address & !(PAGE - 1), PageSize::Small, flags)
    }

    /// Makes the pages of a range present, up to the first that cannot be.
    ///
    /// # Errors
    /// As of [`Space::fault`].
    pub fn populate(&mut self, start: u64, end: u64, access: Rights) -> Result<(), Errno> {
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

    /// Maps a page of memory that others may have, too.
    fn show(&mut self, start: u64, share: Share, flags: Flags) -> Result<(), Errno> {
        let shared = self.shares.get(&share.memory);
        let index = start.wrapping_sub(share.base) / PAGE;
        let page = Page {
            start,
            frame: shared.ok_or(Errno::EFAULT)?.frame(index)?,
            size: PageSize::Small,
            flags,
        };
        self.table()
            .map(page, &mut ProgramTables)
            .map_err(|_| Errno::ENOMEM)
    }

    /// Maps a fresh page that is zero.
    fn add(&mut self, start: u64, size: PageSize, flags: Flags) -> Result<(), Errno> {
        let order = order_of(size);
        let frame = take_for_program(order).ok_or(Errno::ENOMEM)?;
        // SAFETY: it has just been taken.
        unsafe { memory::clear(frame, size.bytes()) };
        let page = Page {
            start,
            frame,
            size,
            flags,
        };
        self.table().map(page, &mut ProgramTables).map_err(|error| {
            give_block(frame, order);
            match error {
                MapError::NoMemory => Errno::ENOMEM,
                MapError::Occupied => Errno::EEXIST,
            }
        })
    }

    /// Takes a range away. Its frames are free once nobody can reach them.
    ///
    /// # Errors
    /// [`Errno::EINVAL`], [`Errno::ENOMEM`] as of munmap(2).
    pub fn unmap(&mut self, start: u64, end: u64, release: &mut Release) -> Result<(), Errno> {
        if !start.is_multiple_of(PAGE) || !self.holds(start, end) {
            return Err(Errno::EINVAL);
        }
        self.areas.can_remove(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        self.drop_pages(start, end, release);
        let shares = &mut self.shares;
        let mut unshown = |memory| drop(shares.remove(&memory));
        self.areas.remove(start, end, &mut unshown);
        Ok(())
    }

    /// Takes all away, for another program.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn clear(&mut self, release: &mut Release) -> Result<(), Errno> {
        let (start, end) = self.bounds;
        self.heap = (0, 0);
        self.stack = (0, 0);
        self.mappings_end = end;
        self.unmap(start, end, release)
    }

    /// Sees to it that no page reaches across an address.
    fn split_at(&mut self, address: u64) -> Result<(), Errno> {
        let Some(page) = self.table().find(address) else {
            return Ok(());
        };
        if page.size == PageSize::Small || page.start == address {
            return Ok(());
        }
        self.table()
            .split(address, &mut ProgramTables)
            .map_err(|_| Errno::ENOMEM)?;
        cores::forget_all(self.root());
        Ok(())
    }

    fn drop_pages(&mut self, start: u64, end: u64, release: &mut Release) {
        if !self.condemn_pages(start, end) {
            return;
        }
        cores::forget_all(self.root());
        let (pinned, _) = self.invalidate((start, end), false, release);
        self.give_condemned(start, end, &pinned);
    }

    /// Has the base let go of a range: what is pinned then, and whether frames have come out of
    /// quarantine.
    fn invalidate(
        &mut self,
        (start, end): (u64, u64),
        keeps_pages: bool,
        release: &mut Release,
    ) -> (Pinned, bool) {
        let pinned = release(Invalidation {
            start,
            end,
            keeps_pages,
            is_needed: self.quarantine.is_any_pinned(),
        });
        let is_any_back = self.quarantine.hear(&pinned);
        (pinned, is_any_back)
    }

    /// Gives back what is not pinned any more of what the program gave back before; whether there was
    /// any.
    pub fn recover(&mut self, release: &mut Release) -> bool {
        let (start, _) = self.bounds;
        self.quarantine.is_any_pinned() && self.invalidate((start, start + PAGE), true, release).1
    }

    /// Takes the pages of a range out of the table, which remembers them: to note them elsewhere takes
    /// memory, which is what there is not when a program is ended for the want of it. Whether there
    /// were any.
    fn condemn_pages(&mut self, start: u64, end: u64) -> bool {
        let (mut begin, mut is_any) = (start, false);
        while let Some(area) = self.areas.first_within(begin, end) {
            let mut next = area.start;
            while let Some(page) = self.table().next(next, area.end) {
                self.table().condemn(page.start);
                is_any = true;
                next = page.start + page.size.bytes();
            }
            begin = area.end;
        }
        is_any
    }

    /// Gives the condemned pages of a range back, but for what is pinned.
    fn give_condemned(&mut self, start: u64, end: u64, pinned: &Pinned) {
        let mut begin = start;
        while let Some(area) = self.areas.first_within(begin, end) {
            let share = area.share;
            let shared = share.and_then(|share| self.shares.get(&share.memory).cloned());
            let mut next = area.start;
            while let Some(page) = self.table().take_condemned(next, area.end) {
                next = page.start + page.size.bytes();
                match &shared {
                    Some(shared) => self.quarantine.admit_shared(shared, page.frame, pinned),
                    None if share.is_some() => {}
                    None => {
                        let block = (page.frame, order_of(page.size));
                        self.quarantine.admit(block, pinned);
                    }
                }
            }
            begin = area.end;
        }
    }

    /// Changes what may be done in a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if not all of it is mapped; [`Errno::EACCES`] if the kernel's would be written,
    /// or a file.
    pub fn protect(
        &mut self,
        start: u64,
        end: u64,
        rights: Rights,
        release: &mut Release,
    ) -> Result<(), Errno> {
        if !self.holds(start, end) || !self.areas.covers(start, end) {
            return Err(Errno::ENOMEM);
        }
        let is_kernels = |share: Share| share.memory == shared::KERNELS;
        let is_kept = |area: Area| {
            area.flags.contains(AreaFlags::NEVER_WRITABLE) || area.share.is_some_and(is_kernels)
        };
        let writes = rights.contains(Rights::WRITE);
        if writes && self.areas.within(start, end).any(is_kept) {
            return Err(Errno::EACCES);
        }
        self.areas.can_cut(start, end)?;
        self.split_at(start)?;
        self.split_at(end)?;
        let more = match writes {
            true => AreaFlags::MAY_DIFFER,
            false => AreaFlags::empty(),
        };
        self.areas.change(start, end, |area| Area {
            rights,
            // Of what is of no file nobody asks.
            flags: match area.flags.contains(AreaFlags::FILE) {
                true => area.flags | more,
                false => area.flags,
            },
            ..area
        });
        let flags = flags_of(rights);
        let (mut next, mut changed) = (start, false);
        while let Some(page) = self.table().next(next, end) {
            self.table().protect(page.start, flags);
            next = page.start + page.size.bytes();
            changed = true;
        }
        if changed {
            cores::forget_all(self.root());
            self.invalidate((start, end), true, release);
        }
        Ok(())
    }

    /// Limits the bytes that its areas may have.
    pub fn set_limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// The most bytes that its areas may have.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Where the heap of brk(2) begins.
    pub fn set_heap(&mut self, start: u64) {
        let start = start.next_multiple_of(PAGE);
        self.heap = (start, start);
    }

    /// Moves the end of the heap, if that can be; where it is then.
    pub fn move_heap_end(&mut self, wanted: u64, release: &mut Release) -> u64 {
        let (start, end) = self.heap;
        let (from, to) = (
            end.next_multiple_of(PAGE),
            wanted.saturating_add(PAGE - 1) & !(PAGE - 1),
        );
        if wanted < start {
            return end;
        }
        let moved = match to.cmp(&from) {
            core::cmp::Ordering::Less => self.unmap(to, from, release).is_ok(),
            core::cmp::Ordering::Equal => true,
            core::cmp::Ordering::Greater => {
                let rights = Rights::READ | Rights::WRITE;
                self.map(Place::AtIfFree(from), to - from, rights, release)
                    .is_ok()
            }
        };
        if moved {
            self.heap.1 = wanted;
        }
        self.heap.1
    }

    /// Its areas.
    #[must_use]
    pub fn areas(&self) -> &Areas {
        &self.areas
    }

    /// The first stretch of a range in which there are pages.
    #[must_use]
    pub fn present(&mut self, start: u64, end: u64) -> Option<(u64, u64)> {
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

    /// The shared memory at an address, and the place in it.
    #[must_use]
    pub fn shared_at(&self, address: u64) -> Option<(u64, u64)> {
        let share = self.areas.find(address)?.share?;
        Some((share.memory, address.wrapping_sub(share.base)))
    }

    /// Whether a range may be accessed so, wherever it is the program's.
    #[must_use]
    pub fn permits(&self, start: u64, end: u64, access: Rights) -> bool {
        let mut areas = self.areas.within(start, end);
        areas.all(|area| area.rights.contains(access))
    }

    /// Whether all of a range is the program's.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.areas.covers(start, end)
    }

    /// Frees all. No core uses the table, and nothing of the base reaches any page.
    pub fn free(&mut self) {
        if self.table.is_none() {
            return;
        }
        let (start, end) = self.bounds;
        self.condemn_pages(start, end);
        self.give_condemned(start, end, &Pinned::NONE);
        if let Some(table) = self.table.take() {
            table.free_lower(&mut ProgramTables);
        }
        self.quarantine.end();
        self.shares.clear();
    }
}

fn order_of(size: PageSize) -> u8 {
    match size {
        PageSize::Small => SMALL_ORDER,
        _ => LARGE_ORDER,
    }
}

/// A page with no rights is not present for the program, but keeps its content: it is the kernel's.
fn flags_of(rights: Rights) -> Flags {
    let mut flags = Flags::empty();
    flags.set(Flags::USER, !rights.is_empty());
    flags.set(Flags::WRITABLE, rights.contains(Rights::WRITE));
    flags.set(Flags::NO_EXECUTE, !rights.contains(Rights::EXECUTE));
    flags
}
