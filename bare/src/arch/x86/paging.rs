//! Page tables of four levels, with pages of 4 KiB, 2 MiB and 1 GiB.
//!
//! Tables are accessed through the direct map. The lower half of the addresses is a program's; the
//! upper half is the kernel's, and the same in all tables.

use core::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;

use crate::memory::{FRAME_SIZE, FrameAllocator, HUGE_SIZE, LARGE_SIZE, PhysAddr};

const ENTRIES: usize = 512;
const ROOT_LEVEL: u32 = 4;
/// Address bits of an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Index of the kernel's first root entry.
const KERNEL_HALF: usize = ENTRIES / 2;

bitflags! {
    /// Bits of an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// The entry is valid.
        const PRESENT = 1 << 0;
        /// The page may be written.
        const WRITABLE = 1 << 1;
        /// Programs may access it.
        const USER = 1 << 2;
        /// Not cached.
        const UNCACHED = 1 << 4;
        /// It has been accessed.
        const ACCESSED = 1 << 5;
        /// It has been written.
        const DIRTY = 1 << 6;
        /// A page, not a table (levels 2 and 3).
        const LARGE = 1 << 7;
        /// In an entry that is not present: the page was unmapped, its frame is still to be freed.
        /// The processor ignores such an entry.
        const DEFERRED_FREE = 1 << 9;
        /// In an entry that is present: the page's frame may have other owners, so it is copied
        /// before it is written. The processor ignores this.
        const COPY_ON_WRITE = 1 << 10;
        /// The page is the base's: the base's module writes the entry.
        const BASE = 1 << 11;
        /// The page cannot be executed.
        const NO_EXECUTE = 1 << 63;
    }
}

/// Bits of which one is set in an entry in use.
const IN_USE: u64 = Flags::PRESENT.union(Flags::DEFERRED_FREE).bits();

/// Size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PageSize {
    /// 4 KiB.
    Small,
    /// 2 MiB.
    Large,
    /// 1 GiB.
    Huge,
}

impl PageSize {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Small => FRAME_SIZE,
            Self::Large => LARGE_SIZE,
            Self::Huge => HUGE_SIZE,
        }
    }

    const fn level(self) -> u32 {
        match self {
            Self::Small => 1,
            Self::Large => 2,
            Self::Huge => 3,
        }
    }

    const fn of_level(level: u32) -> Self {
        match level {
            1 => Self::Small,
            2 => Self::Large,
            _ => Self::Huge,
        }
    }
}

/// A mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Virtual address of its first byte.
    pub start: u64,
    /// Physical address of its first byte.
    pub frame: PhysAddr,
    /// Its size.
    pub size: PageSize,
    /// Protection and attributes.
    pub flags: Flags,
}

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
        slot.store(
            page.frame.0 | bits_of(page.flags, page.size),
            Ordering::Release,
        );
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
                table = PhysAddr(value & ADDRESS);
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
        let value = slot.load(Ordering::Acquire);
        let size = PageSize::of_level(level);
        Some(Page {
            start: address & !(size.bytes() - 1),
            frame: PhysAddr(value & ADDRESS & !(size.bytes() - 1)),
            size,
            flags: Flags::from_bits_truncate(value).difference(Flags::LARGE),
        })
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
            table = PhysAddr(value & ADDRESS);
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
        let mut address = from;
        while address < to {
            let (slot, level) = self.last_slot(address);
            let value = slot.load(Ordering::Acquire);
            let size = PageSize::of_level(level).bytes();
            if value & IN_USE == Flags::DEFERRED_FREE.bits() {
                slot.store(0, Ordering::Release);
                return Some(Page {
                    start: address & !(size - 1),
                    frame: PhysAddr(value & ADDRESS & !(size - 1)),
                    size: PageSize::of_level(level),
                    flags: Flags::empty(),
                });
            }
            let step = 1_u64 << (12 + 9 * (level - 1));
            address = (address & !(step - 1)).checked_add(step)?;
        }
        None
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
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let slot = entry(table, index(address, level));
            let value = slot.load(Ordering::Acquire);
            let is_table = value & (Flags::PRESENT | Flags::LARGE).bits() == Flags::PRESENT.bits();
            if level == 1 || !is_table {
                return (slot, level);
            }
            (table, level) = (PhysAddr(value & ADDRESS), level - 1);
        }
    }

    /// Changes the flags of the page that contains an address. Returns whether there is one.
    pub fn protect(&mut self, address: u64, flags: Flags) -> bool {
        let Some((slot, level)) = self.slot(address) else {
            return false;
        };
        let size = PageSize::of_level(level);
        let frame = slot.load(Ordering::Relaxed) & ADDRESS & !(size.bytes() - 1);
        slot.store(frame | bits_of(flags, size), Ordering::Release);
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
        let value = page.frame.0 | bits_of(page.flags, page.size);
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
        let frame = value & ADDRESS & !(size.bytes() - 1);
        let flags = Flags::from_bits_truncate(value).difference(Flags::LARGE);
        let below = frames.alloc().ok_or(MapError::NoMemory)?;
        for part in 0..ENTRIES {
            let at = frame + part as u64 * smaller.bytes();
            entry(below, part).store(at | bits_of(flags, smaller), Ordering::Relaxed);
        }
        let above = Flags::PRESENT | Flags::WRITABLE | Flags::USER;
        slot.store(below.0 | above.bits(), Ordering::Release);
        Ok(())
    }

    /// Returns the first page from `from` to before `to`.
    #[must_use]
    pub fn next(&self, from: u64, to: u64) -> Option<Page> {
        let mut address = from;
        while address < to {
            match self.find_or_gap(address) {
                Ok(page) => return Some(page),
                Err(gap) => address = (address & !(gap - 1)).checked_add(gap)?,
            }
        }
        None
    }

    /// Returns the page that contains an address, or else the size of the aligned gap.
    fn find_or_gap(&self, address: u64) -> Result<Page, u64> {
        let mut table = self.root;
        for level in (1..=ROOT_LEVEL).rev() {
            let value = entry(table, index(address, level)).load(Ordering::Acquire);
            if value & Flags::PRESENT.bits() == 0 {
                return Err(1 << (12 + 9 * (level - 1)));
            }
            if level == 1 || value & Flags::LARGE.bits() != 0 {
                break;
            }
            table = PhysAddr(value & ADDRESS);
        }
        self.find(address).ok_or(FRAME_SIZE)
    }

    /// Frees all tables of the lower half, and the root. The caller has freed the pages; no core
    /// uses the table, and nobody walks it.
    pub fn free_user_half(self, frames: &mut dyn FrameAllocator) {
        for slot in 0..KERNEL_HALF {
            free_below(entry(self.root, slot), ROOT_LEVEL - 1, frames);
        }
        frames.free(self.root);
    }
}

/// Frees the table of level `level` that an entry points to, and all below it.
fn free_below(slot: &AtomicU64, level: u32, frames: &mut dyn FrameAllocator) {
    // Most are empty, and an exchange costs more than a look.
    let value = match slot.load(Ordering::Relaxed) {
        0 => return,
        _ => slot.swap(0, Ordering::AcqRel),
    };
    if value & Flags::PRESENT.bits() == 0 || value & Flags::LARGE.bits() != 0 {
        return;
    }
    let table = PhysAddr(value & ADDRESS);
    if level > 1 {
        for below in 0..ENTRIES {
            free_below(entry(table, below), level - 1, frames);
        }
    }
    frames.free(table);
}

fn bits_of(flags: Flags, size: PageSize) -> u64 {
    let flags = flags | Flags::PRESENT;
    match size {
        PageSize::Small => flags.bits(),
        _ => (flags | Flags::LARGE).bits(),
    }
}
