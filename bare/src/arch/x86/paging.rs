//! Page tables of four levels, with pages of 4 KiB, 2 MiB and 1 GiB.
//!
//! A table is read and written through the direct map. The lower half of the addresses is a
//! program's, the upper half the kernel's, which is the same in all tables.

use core::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;

use crate::memory::{FRAME_SIZE, Frames, HUGE_SIZE, LARGE_SIZE, PhysAddr};

const ENTRIES: usize = 512;
const ROOT_LEVEL: u32 = 4;
/// Bits of an entry that are an address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// First entry of the root that is the kernel's.
const KERNEL_HALF: usize = ENTRIES / 2;

bitflags! {
    /// Bits of an entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// It leads somewhere.
        const PRESENT = 1 << 0;
        /// What it leads to may be written.
        const WRITABLE = 1 << 1;
        /// Programs may reach it.
        const USER = 1 << 2;
        /// Not cached.
        const UNCACHED = 1 << 4;
        /// It has been reached.
        const ACCESSED = 1 << 5;
        /// It has been written.
        const DIRTY = 1 << 6;
        /// It is a page, not a table (of levels 2 and 3).
        const LARGE = 1 << 7;
        /// Of an entry that leads nowhere: it still tells which frame the page has. The processor
        /// looks at no bit of such an entry.
        const CONDEMNED = 1 << 9;
        /// Nothing there is executed.
        const NO_EXECUTE = 1 << 63;
    }
}

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
    /// In bytes.
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

/// A page as a table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Address of its first byte.
    pub start: u64,
    /// Where it lies.
    pub frame: PhysAddr,
    /// Its size.
    pub size: PageSize,
    /// What may be done with it.
    pub flags: Flags,
}

/// Why a page was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// There is no frame for a table.
    NoMemory,
    /// Something is mapped there.
    Occupied,
}

/// A page table, by its root. It is not freed with this value: see [`PageTable::free_lower`].
#[derive(Debug, PartialEq, Eq)]
pub struct PageTable {
    root: PhysAddr,
}

/// An entry, which the processor, and the base's half of delegation, may read at any moment.
fn entry(table: PhysAddr, index: usize) -> &'static AtomicU64 {
    debug_assert!(index < ENTRIES);
    let table = table.in_direct_map().cast::<AtomicU64>();
    // SAFETY: 1. a table is a frame of this kernel's, in the direct map for good. 2. The index is
    // below 512. 3. Entries are only ever reached as atomics.
    unsafe { &*table.add(index % ENTRIES) }
}

fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize % ENTRIES
}

impl PageTable {
    /// The table whose root is there.
    ///
    /// # Safety
    /// It is a page table, and no other value is for it.
    #[must_use]
    pub unsafe fn from_root(root: PhysAddr) -> Self {
        Self { root }
    }

    /// An empty one that has the kernel's half of `kernel`.
    ///
    /// # Errors
    /// [`MapError::NoMemory`].
    pub fn with_kernel_of(kernel: &Self, frames: &mut dyn Frames) -> Result<Self, MapError> {
        let root = frames.take().ok_or(MapError::NoMemory)?;
        for slot in KERNEL_HALF..ENTRIES {
            let value = entry(kernel.root, slot).load(Ordering::Relaxed);
            entry(root, slot).store(value, Ordering::Relaxed);
        }
        Ok(Self { root })
    }

    /// A root with nothing in it, whose kernel half has all its second-level tables, so that tables
    /// made with [`PageTable::with_kernel_of`] see what is mapped there later.
    ///
    /// # Errors
    /// [`MapError::NoMemory`].
    pub fn new_kernel(frames: &mut dyn Frames) -> Result<Self, MapError> {
        let root = frames.take().ok_or(MapError::NoMemory)?;
        Ok(Self { root })
    }

    /// Where its root lies.
    #[must_use]
    pub fn root(&self) -> PhysAddr {
        self.root
    }

    /// Maps a page.
    ///
    /// # Errors
    /// [`MapError`]; nothing has changed but that tables may have been added.
    ///
    /// # Panics
    /// If address or frame is no multiple of the size.
    pub fn map(&mut self, page: Page, frames: &mut dyn Frames) -> Result<(), MapError> {
        let bytes = page.size.bytes();
        assert!(page.start.is_multiple_of(bytes) && page.frame.0.is_multiple_of(bytes));
        let table = self.table_for(page.start, page.size.level(), frames)?;
        let slot = entry(table, index(page.start, page.size.level()));
        if slot.load(Ordering::Relaxed) & Flags::PRESENT.bits() != 0 {
            return Err(MapError::Occupied);
        }
        slot.store(
            page.frame.0 | bits_of(page.flags, page.size),
            Ordering::Release,
        );
        Ok(())
    }

    /// The table of `level` for an address, made on the way if it is not there.
    fn table_for(
        &mut self,
        address: u64,
        level: u32,
        frames: &mut dyn Frames,
    ) -> Result<PhysAddr, MapError> {
        let mut table = self.root;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            let slot = entry(table, index(address, above));
            let value = slot.load(Ordering::Relaxed);
            if value & Flags::PRESENT.bits() == 0 {
                let below = frames.take().ok_or(MapError::NoMemory)?;
                // What may be done is decided by the last entry; all above allow it.
                let mut flags = Flags::PRESENT | Flags::WRITABLE;
                if index(address, ROOT_LEVEL) < KERNEL_HALF {
                    flags |= Flags::USER;
                }
                slot.store(below.0 | flags.bits(), Ordering::Release);
                table = below;
            } else if value & Flags::LARGE.bits() != 0 {
                return Err(MapError::Occupied);
            } else {
                table = PhysAddr(value & ADDRESS);
            }
        }
        Ok(table)
    }

    /// The page that holds an address.
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

    /// The entry of the page that holds an address, and its level.
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

    /// Takes out the page that holds an address. Cores may still know it: see [`super::cpu::forget_page`].
    pub fn unmap(&mut self, address: u64) -> Option<Page> {
        let page = self.find(address)?;
        let (slot, _) = self.slot(address)?;
        slot.store(0, Ordering::Release);
        Some(page)
    }

    /// Takes out the page that holds an address, but keeps in its entry which frame it has, until
    /// [`PageTable::take_condemned`]: so whoever frees many pages once nobody reaches them needs no
    /// memory to remember them. Nothing is mapped there meanwhile. Whether there is such a page.
    pub fn condemn(&mut self, address: u64) -> bool {
        let Some((slot, _)) = self.slot(address) else {
            return false;
        };
        let value = slot.load(Ordering::Relaxed) & !Flags::PRESENT.bits();
        slot.store(value | Flags::CONDEMNED.bits(), Ordering::Release);
        true
    }

    /// The first condemned page at or after `from` and before `to`, which is forgotten.
    pub fn take_condemned(&mut self, from: u64, to: u64) -> Option<Page> {
        let mut address = from;
        while address < to {
            let (slot, level) = self.last_slot(address);
            let value = slot.load(Ordering::Acquire);
            let size = PageSize::of_level(level).bytes();
            let is_page =
                value & (Flags::PRESENT | Flags::CONDEMNED).bits() == Flags::CONDEMNED.bits();
            if is_page {
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

    /// The last entry on the way to an address, and its level: that of a page, or one that leads
    /// nowhere.
    fn last_slot(&self, address: u64) -> (&'static AtomicU64, u32) {
        let (mut table, mut level) = (self.root, ROOT_LEVEL);
        loop {
            let slot = entry(table, index(address, level));
            let value = slot.load(Ordering::Acquire);
            let leads_on = value & (Flags::PRESENT | Flags::LARGE).bits() == Flags::PRESENT.bits();
            if level == 1 || !leads_on {
                return (slot, level);
            }
            (table, level) = (PhysAddr(value & ADDRESS), level - 1);
        }
    }

    /// Changes what may be done with the page that holds an address; whether there is one.
    pub fn protect(&mut self, address: u64, flags: Flags) -> bool {
        let Some((slot, level)) = self.slot(address) else {
            return false;
        };
        let size = PageSize::of_level(level);
        let frame = slot.load(Ordering::Relaxed) & ADDRESS & !(size.bytes() - 1);
        slot.store(frame | bits_of(flags, size), Ordering::Release);
        true
    }

    /// Splits the page that holds an address into pages of the next smaller size, all alike.
    ///
    /// # Errors
    /// [`MapError::NoMemory`]; it is then whole.
    pub fn split(&mut self, address: u64, frames: &mut dyn Frames) -> Result<(), MapError> {
        let Some((slot, level)) = self.slot(address).filter(|&(_, level)| level > 1) else {
            return Ok(());
        };
        let value = slot.load(Ordering::Relaxed);
        let (size, smaller) = (PageSize::of_level(level), PageSize::of_level(level - 1));
        let frame = value & ADDRESS & !(size.bytes() - 1);
        let flags = Flags::from_bits_truncate(value).difference(Flags::LARGE);
        let below = frames.take().ok_or(MapError::NoMemory)?;
        for part in 0..ENTRIES {
            let at = frame + part as u64 * smaller.bytes();
            entry(below, part).store(at | bits_of(flags, smaller), Ordering::Relaxed);
        }
        let above = Flags::PRESENT | Flags::WRITABLE | Flags::USER;
        slot.store(below.0 | above.bits(), Ordering::Release);
        Ok(())
    }

    /// The first page at or after `from` and before `to`.
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

    /// The page that holds an address, or the size of the aligned gap that does.
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

    /// Gives back all tables of the lower half, and the root. Its pages are the caller's to free
    /// before. No core uses it, and nobody walks it any more.
    pub fn free_lower(self, frames: &mut dyn Frames) {
        for slot in 0..KERNEL_HALF {
            free_below(entry(self.root, slot), ROOT_LEVEL - 1, frames);
        }
        frames.give(self.root);
    }
}

/// Gives back the table that an entry leads to, whose level is `level`, and all below it.
fn free_below(slot: &AtomicU64, level: u32, frames: &mut dyn Frames) {
    let value = slot.swap(0, Ordering::AcqRel);
    if value & Flags::PRESENT.bits() == 0 || value & Flags::LARGE.bits() != 0 {
        return;
    }
    let table = PhysAddr(value & ADDRESS);
    if level > 1 {
        for below in 0..ENTRIES {
            free_below(entry(table, below), level - 1, frames);
        }
    }
    frames.give(table);
}

fn bits_of(flags: Flags, size: PageSize) -> u64 {
    let flags = flags | Flags::PRESENT;
    match size {
        PageSize::Small => flags.bits(),
        _ => (flags | Flags::LARGE).bits(),
    }
}
