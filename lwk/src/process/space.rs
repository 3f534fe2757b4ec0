//! A program's memory: its areas, its page table, its frames.
//!
//! The kernel never reaches a program's memory by the program's addresses: it looks the page up (and
//! makes it present, as the program's own access would) and goes through the direct map.

#![allow(
    unsafe_code,
    reason = "a program's frames are reached through the direct map"
)]

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use insula_bare::cpu;
use insula_bare::memory::{self, LARGE_SIZE, PhysAddr};
use insula_bare::paging::{Flags, MapError, Page, PageSize, PageTable};

use super::PAGE;
use super::areas::{Area, Areas, Rights};
use super::errno::Errno;
use crate::cores;
use crate::memory::{Pool, give_block, take_block};

/// Orders of blocks for pages.
const SMALL_ORDER: u8 = 0;
const LARGE_ORDER: u8 = 9;
/// A program has no page at the very beginning, so that a null pointer is a fault.
const ADDRESS_MIN: u64 = 1 << 16;

/// Has the base let go of a range; whether it has. `mapped_only`: the pages stay the program's.
pub type Release<'a> = dyn FnMut(u64, u64, bool) -> bool + 'a;

/// A program's memory.
#[derive(Debug)]
pub struct Space {
    table: Option<PageTable>,
    areas: Areas,
    /// All addresses that it may have.
    bounds: (u64, u64),
    /// Pages that something of the base holds: not to be used again before the process is gone.
    withheld: Vec<(PhysAddr, PageSize)>,
    /// Start and end of the heap that brk(2) moves.
    heap: (u64, u64),
}

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
        let table = PageTable::with_kernel_of(kernel, &mut Pool).map_err(|_| Errno::ENOMEM)?;
        let bounds = (
            bounds.0.max(ADDRESS_MIN),
            bounds.1.min(insula_bare::user::USER_END),
        );
        Ok(Self {
            table: Some(table),
            areas: Areas::default(),
            bounds,
            withheld: Vec::new(),
            heap: (0, 0),
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
        match place {
            Place::AtIfFree(_) if self.areas.within(start, end).next().is_some() => {
                return Err(Errno::EEXIST);
            }
            Place::At(_) => self.unmap(start, end, release)?,
            _ => {}
        }
        self.areas.insert(Area { start, end, rights });
        Ok(start)
    }

    /// A free range: at the hint if that is free, else the highest. Large ones begin at a large page.
    fn choose(&self, hint: u64, size: u64) -> Result<u64, Errno> {
        let hint = hint & !(PAGE - 1);
        let end = hint.saturating_add(size);
        if hint != 0 && self.holds(hint, end) && self.areas.within(hint, end).next().is_none() {
            return Ok(hint);
        }
        let alignment = if size >= LARGE_SIZE { LARGE_SIZE } else { PAGE };
        let (bottom, top) = self.bounds;
        let gap = |alignment| self.areas.gap(size, alignment, bottom, top);
        gap(alignment).or_else(|| gap(PAGE)).ok_or(Errno::ENOMEM)
    }

    /// Makes the page of an address present, as an access needs it.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if there is no such memory, or the access is not allowed; [`Errno::ENOMEM`].
    pub fn fault(&mut self, address: u64, access: Rights) -> Result<(), Errno> {
        let area = self.areas.find(address).ok_or(Errno::EFAULT)?;
        if !area.rights.contains(access) || area.rights.is_empty() {
            return Err(Errno::EFAULT);
        }
        if self.table().find(address).is_some() {
            // Another thread was faster, or this core's memory of it is old.
            cpu::forget_page(address);
            return Ok(());
        }
        let flags = flags_of(area.rights);
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

    /// Maps a fresh page that is zero.
    fn add(&mut self, start: u64, size: PageSize, flags: Flags) -> Result<(), Errno> {
        let order = order_of(size);
        let frame = take_block(order).ok_or(Errno::ENOMEM)?;
        // SAFETY: it has just been taken.
        unsafe { memory::clear(frame, size.bytes()) };
        let page = Page {
            start,
            frame,
            size,
            flags,
        };
        self.table().map(page, &mut Pool).map_err(|error| {
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
        self.split_at(start)?;
        self.split_at(end)?;
        self.areas.remove(start, end);
        self.drop_pages(start, end, release);
        Ok(())
    }

    /// Gives the pages of a range back; the next access finds fresh ones.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn discard(&mut self, start: u64, end: u64, release: &mut Release) -> Result<(), Errno> {
        self.split_at(start)?;
        self.split_at(end)?;
        self.drop_pages(start, end, release);
        Ok(())
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
            .split(address, &mut Pool)
            .map_err(|_| Errno::ENOMEM)?;
        cores::forget_all(self.root());
        Ok(())
    }

    fn drop_pages(&mut self, start: u64, end: u64, release: &mut Release) {
        let mut pages = Vec::new();
        let mut next = start;
        while let Some(page) = self.table().next(next, end) {
            self.table().unmap(page.start);
            pages.push((page.frame, page.size));
            next = page.start + page.size.bytes();
        }
        if pages.is_empty() {
            return;
        }
        cores::forget_all(self.root());
        if release(start, end, false) {
            give_pages(&pages);
        } else {
            self.withheld.extend(pages);
        }
    }

    /// Changes what may be done in a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if not all of it is mapped.
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
        self.split_at(start)?;
        self.split_at(end)?;
        self.areas.protect(start, end, rights);
        let flags = flags_of(rights);
        let (mut next, mut changed) = (start, false);
        while let Some(page) = self.table().next(next, end) {
            self.table().protect(page.start, flags);
            next = page.start + page.size.bytes();
            changed = true;
        }
        if changed {
            cores::forget_all(self.root());
            release(start, end, true);
        }
        Ok(())
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

    /// Whether all of a range is the program's.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.areas.covers(start, end)
    }

    /// Copies bytes out of the program's memory.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < to.len() {
            let (at, room) = self.reach(address.wrapping_add(done as u64), Rights::READ)?;
            let part = (to.len() - done).min(room);
            // SAFETY: a page of the program's, which stays as long as the space is borrowed.
            unsafe { memory::read(at, &mut to[done..done + part]) };
            done += part;
        }
        Ok(())
    }

    /// Copies bytes into the program's memory.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            let (at, room) = self.reach(address.wrapping_add(done as u64), Rights::WRITE)?;
            let part = (from.len() - done).min(room);
            // SAFETY: as above; nothing of Rust's lies in a program's page.
            unsafe { memory::write(at, &from[done..done + part]) };
            done += part;
        }
        Ok(())
    }

    /// The word of 32 bits at an address, which is a multiple of 4.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn word(&mut self, address: u64) -> Result<u32, Errno> {
        let (at, _) = self.reach(address & !3, Rights::READ)?;
        let word = at.in_direct_map().cast::<AtomicU32>();
        // SAFETY: an aligned word in a page of the program's, which stays as long as the space is
        // borrowed, and is read whole, as an atomic.
        Ok(unsafe { &*word }.load(Ordering::SeqCst))
    }

    /// Where an address lies in memory, for that access, and how many bytes follow it there.
    ///
    /// # Errors
    /// [`Errno::EFAULT`].
    pub fn reach(&mut self, address: u64, access: Rights) -> Result<(PhysAddr, usize), Errno> {
        let area = self.areas.find(address).ok_or(Errno::EFAULT)?;
        if !area.rights.contains(access) {
            return Err(Errno::EFAULT);
        }
        if self.table().find(address).is_none() {
            self.fault(address, access).map_err(|_| Errno::EFAULT)?;
        }
        let page = self.table().find(address).ok_or(Errno::EFAULT)?;
        let skip = address - page.start;
        let room = (page.size.bytes() - skip).min(area.end - address);
        Ok((PhysAddr(page.frame.0 + skip), room as usize))
    }

    /// Frees all. No core uses the table, and nothing of the base reaches any page.
    pub fn free(&mut self) {
        let Some(mut table) = self.table.take() else {
            return;
        };
        let (start, end) = self.bounds;
        let mut next = start;
        while let Some(page) = table.next(next, end) {
            table.unmap(page.start);
            give_block(page.frame, order_of(page.size));
            next = page.start + page.size.bytes();
        }
        table.free_lower(&mut Pool);
        give_pages(&core::mem::take(&mut self.withheld));
    }
}

fn order_of(size: PageSize) -> u8 {
    match size {
        PageSize::Small => SMALL_ORDER,
        _ => LARGE_ORDER,
    }
}

fn give_pages(pages: &[(PhysAddr, PageSize)]) {
    for &(frame, size) in pages {
        give_block(frame, order_of(size));
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
