//! Page tables of four levels, with pages of 4 KiB, 2 MiB and 1 GiB.
//!
//! Tables are accessed through the direct map. The lower half of the addresses is a program's; the
//! upper half is the kernel's, and the same in all tables.

mod page;

use core::sync::atomic::{AtomicU64, Ordering};

use crate::memory::{FrameAllocator, PhysAddr};

pub use page::{Flags, Page, PageSize};

const ENTRIES: usize = 512;
const ROOT_LEVEL: u32 = 4;
/// Index of the kernel's first root entry.
const KERNEL_HALF: usize = ENTRIES / 2;

/// Bits of which one is set in an entry in use.
const IN_USE: u64 = Flags::PRESENT.union(Flags::DEFERRED_FREE).bits();

/// Reason why a page was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No frame for a table.
    NoMemory,
    /// A page is mapped there already.
    Occupied,
}

/// A page table, by its root. Dropping it frees nothing: see [`PageTable::free_user_half`].
#[derive(Debug, PartialEq, Eq)]
pub struct PageTable {
    root: PhysAddr,
}

/// Returns an entry, which the processor and the base's module may read at any time.
fn entry(table: PhysAddr, index: usize) -> &'static AtomicU64 {
    debug_assert!(index < ENTRIES);
    let table = table.in_direct_map().cast::<AtomicU64>();
    // SAFETY: 1. a table is a frame of this kernel, which stays in the direct map. 2. The index is
    // below 512. 3. Entries are only accessed as atomics.
    unsafe { &*table.add(index % ENTRIES) }
}

fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize % ENTRIES
}

impl PageTable {
    /// Makes a value for the table at `root`.
    ///
    /// # Safety
    /// It is a page table, and there is no other value for it.
    #[must_use]
    pub unsafe fn from_root(root: PhysAddr) -> Self {
        Self { root }
    }

    /// Creates an empty table with the kernel half of `kernel`.
    ///
    /// # Errors
    /// [`MapError::NoMemory`].
    pub fn with_kernel_half_of(
        kernel: &Self,
        frames: &mut dyn FrameAllocator,
    ) -> Result<Self, MapError> {
        let root = frames.alloc().ok_or(MapError::NoMemory)?;
        for slot in KERNEL_HALF..ENTRIES {
            let value = entry(kernel.root, slot).load(Ordering::Relaxed);
            entry(root, slot).store(value, Ordering::Relaxed);
        }
        Ok(Self { root })
    }

    /// Creates an empty kernel table. Root entries added later are not seen by tables that were
    /// made from it with [`PageTable::with_kernel_half_of`].
    ///
    /// # Errors
    /// [`MapError::NoMemory`].
    pub fn new_kernel(frames: &mut dyn FrameAllocator) -> Result<Self, MapError> {
        let root = frames.alloc().ok_or(MapError::NoMemory)?;
        Ok(Self { root })
    }

    /// Returns the physical address of the root.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Maps a page.
    ///
    /// # Errors
    /// [`MapError`]; nothing has changed except that tables may have been added.
    ///
    /// # Panics
    /// If address or frame is not a multiple of the page size.
    pub fn map(&mut self, page: Page, frames: &mut dyn FrameAllocator) -> Result<(), MapError> {
        let bytes = page.size.bytes();
        assert!(page.start.is_multiple_of(bytes) && page.frame.0.is_multiple_of(bytes));
        let table = self.table_for(page.start, page.size.level(), frames)?;
        let slot = entry(table, index(page.start, page.size.level()));
        if slot.load(Ordering::Relaxed) & IN_USE != 0 {
            return Err(MapError::Occupied);
        }
        slot.store(page.frame.0 | page.size.bits(page.flags), Ordering::Release);
        Ok(())
    }

    /// Returns the table of `level` for an address; allocates the missing ones.
    fn table_for(
        &mut self,
        address: u64,
        level: u32,
        frames: &mut dyn FrameAllocator,
    ) -> Result<PhysAddr, MapError> {
        let mut table = self.root;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            let slot = entry(table, index(address, above));
            let value = slot.load(Ordering::Relaxed);
            if value & IN_USE == 0 {
                let below = frames.alloc().ok_or(MapError::NoMemory)?;
                // The last entry decides the protection; those above allow all.
                let mut flags = Flags::PRESENT | Flags::WRITABLE;
                if index(address, ROOT_LEVEL) < KERNEL_HALF {
                    flags |= Flags::USER;
                }
                slot.store(below.0 | flags.bits(), Ordering::Release);
                table = below;
            } else if value & (Flags::PRESENT | Flags::LARGE).bits() != Flags::PRESENT.bits() {
                return Err(MapError::Occupied);
            } else {
                table = PhysAddr(value & page::ADDRESS);
            }
        }
        Ok(table)
    }

    /// Allocates the tables above the entry of a small page, which somebody else writes.
    ///
    /// # Errors
    /// [`MapError`]; tables may have been added.
    pub fn prepare(
        &mut self,
        address: u64,
        frames: &mut dyn FrameAllocator,
    ) -> Result<(), MapError> {
        self.table_for(address, PageSize::Small.level(), frames)
            .map(drop)
    }

    /// Allocates the table below the root's entry for an address.
    ///
    /// # Errors
    /// [`MapError`].
    pub fn prepare_root(
        &mut self,
        address: u64,
        frames: &mut dyn FrameAllocator,
    ) -> Result<(), MapError> {
        self.table_for(address, PageSize::Huge.level(), frames)
            .map(drop)
    }

    /// Returns the page that contains an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Page> {
        let (slot, level) = self.slot(address)?;
        Some(Page::of_entry(slot.load(Ordering::Acquire), address, level))
    }

    /// Returns the entry of the page that contains an address, and its level.
    fn slot(&self, address: u64) -> Option<(&'static AtomicU64, u32)> {
        let mut table = self.root;
        for level in (1..=ROOT_LEVEL).rev() {
            let slot = entry(table, index(address, level));
            let value = slot.load(Ordering::Acquire);
            if value & Flags::PRESENT.bits() == 0 {
                return None;
            }
            if level == 1 || value & Flags::LARGE.bits() != 0 {
                return Some((slot, level));
            }
            table = PhysAddr(value & page::ADDRESS);
        }
        None
    }

    /// Unmaps the page that contains an address. The caller flushes the TLBs: see
    /// [`super::cpu::flush_tlb_page`].
    pub fn unmap(&mut self, address: u64) -> Option<Page> {
        let page = self.find(address)?;
        let (slot, _) = self.slot(address)?;
        slot.store(0, Ordering::Release);
        Some(page)
    }

    /// Unmaps the page that contains an address, but keeps its frame in the entry until
    /// [`PageTable::take_deferred`]: so many pages can be unmapped first and freed after the TLB
    /// shootdown without memory for a list. Nothing can be mapped there meanwhile. Returns whether
    /// there was a page.
    pub fn unmap_deferred(&mut self, address: u64) -> bool {
        let Some((slot, _)) = self.slot(address) else {
            return false;
        };
        let value = slot.load(Ordering::Relaxed) & !Flags::PRESENT.bits();
        slot.store(value | Flags::DEFERRED_FREE.bits(), Ordering::Release);
        true
    }

    /// Takes the first page from `from` to before `to` that [`PageTable::unmap_deferred`] has
    /// unmapped.
    pub fn take_deferred(&mut self, from: u64, to: u64) -> Option<Page> {
        let is_deferred = |value| value & IN_USE == Flags::DEFERRED_FREE.bits();
        let (address, slot, level) = self.first_slot(from, to, is_deferred)?;
        let page = Page::of_entry(slot.swap(0, Ordering::AcqRel), address, level);
        Some(Page {
            flags: Flags::empty(),
            ..page
        })
    }

    /// Whether [`PageTable::unmap_deferred`] has unmapped the page that contains an address, and
    /// nobody has taken it yet.
    #[must_use]
    pub fn is_deferred(&self, address: u64) -> bool {
        let (slot, _) = self.last_slot(address);
        slot.load(Ordering::Acquire) & IN_USE == Flags::DEFERRED_FREE.bits()
    }

    /// Returns the last entry on the walk to an address, and its level: that of a page, or one that
    /// is not present.
    fn last_slot(&self, address: u64) -> (&'static AtomicU64, u32) {
        let (table, level) = self.last_table(address);
        (entry(table, index(address, level)), level)
    }

    /// Returns the table of that entry, and its level.
    fn last_table(&self, address: u64) -> (PhysAddr, u32) {
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let value = entry(table, index(address, level)).load(Ordering::Acquire);
            if level == 1 || !page::is_table(value) {
                return (table, level);
            }
            (table, level) = (PhysAddr(value & page::ADDRESS), level - 1);
        }
    }

    /// Changes the flags of the page that contains an address. Returns whether there is one.
    pub fn protect(&mut self, address: u64, flags: Flags) -> bool {
        let Some((slot, level)) = self.slot(address) else {
            return false;
        };
        let size = PageSize::of_level(level);
        let frame = slot.load(Ordering::Relaxed) & page::ADDRESS & !(size.bytes() - 1);
        slot.store(frame | size.bits(flags), Ordering::Release);
        true
    }

    /// Replaces a page of the same address and size. Returns whether there is one.
    pub fn replace(&mut self, page: Page) -> bool {
        let Some((slot, _)) = self
            .slot(page.start)
            .filter(|&(_, level)| level == page.size.level())
        else {
            return false;
        };
        let value = page.frame.0 | page.size.bits(page.flags);
        slot.store(value, Ordering::Release);
        true
    }

    /// Splits the page that contains an address into pages of the next smaller size with the same
    /// flags.
    ///
    /// # Errors
    /// [`MapError::NoMemory`]; the page is then still whole.
    pub fn split(&mut self, address: u64, frames: &mut dyn FrameAllocator) -> Result<(), MapError> {
        let Some((slot, level)) = self.slot(address).filter(|&(_, level)| level > 1) else {
            return Ok(());
        };
        let value = slot.load(Ordering::Relaxed);
        let (size, smaller) = (PageSize::of_level(level), PageSize::of_level(level - 1));
        let frame = value & page::ADDRESS & !(size.bytes() - 1);
        let flags = Flags::from_bits_truncate(value).difference(Flags::LARGE);
        let below = frames.alloc().ok_or(MapError::NoMemory)?;
        for part in 0..ENTRIES {
            let at = frame + part as u64 * smaller.bytes();
            entry(below, part).store(at | smaller.bits(flags), Ordering::Relaxed);
        }
        let above = Flags::PRESENT | Flags::WRITABLE | Flags::USER;
        slot.store(below.0 | above.bits(), Ordering::Release);
        Ok(())
    }

    /// Returns the first page from `from` to before `to`.
    #[must_use]
    pub fn next(&self, from: u64, to: u64) -> Option<Page> {
        let is_present = |value| value & Flags::PRESENT.bits() != 0;
        let (address, slot, level) = self.first_slot(from, to, is_present)?;
        Some(Page::of_entry(slot.load(Ordering::Acquire), address, level))
    }

    /// Returns the first last entry of a walk to an address from `from` to before `to` whose value is
    /// wanted, with that address and its level. Each table is walked to once.
    fn first_slot(
        &self,
        from: u64,
        to: u64,
        is_wanted: impl Fn(u64) -> bool,
    ) -> Option<(u64, &'static AtomicU64, u32)> {
        let mut address = from;
        while address < to {
            let (table, level) = self.last_table(address);
            let step = 1_u64 << (12 + 9 * (level - 1));
            for at in index(address, level)..ENTRIES {
                let slot = entry(table, at);
                let value = slot.load(Ordering::Acquire);
                if level > 1 && page::is_table(value) {
                    break;
                }
                if is_wanted(value) {
                    return Some((address, slot, level));
                }
                address = (address & !(step - 1)).checked_add(step)?;
                if address >= to {
                    return None;
                }
            }
        }
        None
    }

    /// Frees all tables of the lower half, and the root. The caller has freed the pages; no core
    /// uses the table, and nobody walks it.
    pub fn free_user_half(self, frames: &mut dyn FrameAllocator) {
        free_tables(self.root, KERNEL_HALF, ROOT_LEVEL - 1, frames);
        frames.free(self.root);
    }
}

/// Frees the table of level `level` that an entry points to, and all below it.
fn free_below(slot: &AtomicU64, level: u32, frames: &mut dyn FrameAllocator) {
    let value = slot.swap(0, Ordering::AcqRel);
    if !page::is_table(value) {
        return;
    }
    let table = PhysAddr(value & page::ADDRESS);
    if level > 1 {
        free_tables(table, ENTRIES, level - 1, frames);
    }
    frames.free(table);
}

/// Frees the tables of level `level` below the first entries of a table.
fn free_tables(table: PhysAddr, count: usize, level: u32, frames: &mut dyn FrameAllocator) {
    for slot in (0..count).map(|at| entry(table, at)) {
        // Most are empty, and an exchange costs more than a look.
        if slot.load(Ordering::Relaxed) != 0 {
            free_below(slot, level, frames);
        }
    }
}
