//! Pages, and the entries that map them.

use bitflags::bitflags;

use crate::memory::{FRAME_SIZE, HUGE_SIZE, LARGE_SIZE, PhysAddr};

/// Address bits of an entry.
pub(super) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

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

    pub(super) const fn level(self) -> u32 {
        match self {
            Self::Small => 1,
            Self::Large => 2,
            Self::Huge => 3,
        }
    }

    pub(super) const fn of_level(level: u32) -> Self {
        match level {
            1 => Self::Small,
            2 => Self::Large,
            _ => Self::Huge,
        }
    }

    /// The bits of an entry that maps a page of this size, but for its address.
    pub(super) const fn bits(self, flags: Flags) -> u64 {
        let flags = flags.union(Flags::PRESENT);
        match self {
            Self::Small => flags.bits(),
            Self::Large | Self::Huge => flags.union(Flags::LARGE).bits(),
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

impl Page {
    /// The page of an entry of level `level` on the walk to an address.
    pub(super) fn of_entry(value: u64, address: u64, level: u32) -> Self {
        let size = PageSize::of_level(level);
        let within = size.bytes() - 1;
        Self {
            start: address & !within,
            frame: PhysAddr(value & ADDRESS & !within),
            size,
            flags: Flags::from_bits_truncate(value).difference(Flags::LARGE),
        }
    }
}

/// Whether an entry above the last level points to a table.
pub(super) fn is_table(value: u64) -> bool {
    value & (Flags::PRESENT | Flags::LARGE).bits() == Flags::PRESENT.bits()
}
