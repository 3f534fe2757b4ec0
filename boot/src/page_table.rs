//! Page tables of four levels: the initial one of a node's first core, and those of a confined
//! node's monitor, which are made in `monitor`.
//!
//! The node's is an identity mapping of its chunks, the trampoline page and page 0, with 2 MiB pages
//! where possible and 4 KiB pages elsewhere, and nothing else. The kernel replaces it early, but reads
//! boot parameters, command line and its own image through it first.
//!
//! Sources: Intel SDM volume 3, section 4.5 "4-level paging", and 29.3.2 "EPT Translation Mechanism".
//! Entries use neither NX (EFER.NXE is off at start) nor 1 GiB pages (older cores lack them).

use crate::chunk::{Chunk, Memory, PAGE};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// Of pages of AMD's nested page tables: write-through and cache disable, by which the third entry of the
/// PAT counts, which is "uncached" after a reset and in Linux' own (`pat_bp_init` of arch/x86/mm/pat).
const UNCACHED: u64 = 3 << 3;
const LARGE: u64 = 1 << 7;
/// Of entries of Intel's nested page tables (EPT): reading is bit 0, writing bit 1, as above.
const EXECUTABLE: u64 = 1 << 2;
/// Memory type of a page there: write-back, unless the guest's own table says otherwise. "Uncached" is 0.
const WRITE_BACK: u64 = 6 << 3;

/// Size of a large page in bytes.
const LARGE_PAGE: u64 = 2 << 20;
const ENTRIES: usize = 512;
/// Level of the root. Tables of level 1 hold 4 KiB pages, those of level 2 may hold 2 MiB pages.
const ROOT_LEVEL: u32 = 4;

/// The page of the BIOS data area. The decompressor of 6.1 kernels reads the end of low memory
/// there before it has page tables of its own (`find_trampoline_placement()` in
/// arch/x86/boot/compressed/pgtable_64.c).
const BIOS_DATA_AREA: Chunk = Chunk {
    start: 0,
    size: PAGE,
};

struct Table {
    level: u32,
    /// Page entries are final; table entries hold the table's offset from the root instead of its
    /// address.
    entries: [u64; ENTRIES],
}

/// Who translates addresses by a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// A kernel.
    Kernel,
    /// AMD's processor, for a guest: nested accesses count as a program's (AMD APM volume 2, 15.25.5).
    Npt,
    /// Intel's processor, for a guest.
    Ept,
}

/// What a page allows besides reading and executing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    ReadOnly,
    /// Registers of a device: written, and not cached.
    Device,
}

/// A page table without a fixed address.
pub(crate) struct PageTable {
    tables: Vec<Table>,
    /// Bits of every entry.
    flags: u64,
    /// Further bits of those for memory, and for devices.
    memory_flags: u64,
    device_flags: u64,
}

impl PageTable {
    /// An identity mapping of `memory`, the page at `trampoline` and page 0.
    pub(crate) fn identity(memory: &Memory, trampoline: u64) -> PageTable {
        let mut table = PageTable::new(Use::Kernel);
        table.map(BIOS_DATA_AREA);
        table.map(Chunk {
            start: trampoline,
            size: PAGE,
        });
        memory.all().for_each(|chunk| table.map(chunk));
        table
    }

    /// An empty table.
    pub(crate) fn new(used_by: Use) -> PageTable {
        let (flags, memory_flags, device_flags) = match used_by {
            Use::Kernel => (PRESENT, 0, UNCACHED),
            Use::Npt => (PRESENT | USER, 0, UNCACHED),
            Use::Ept => (PRESENT | EXECUTABLE, WRITE_BACK, 0),
        };
        let mut table = PageTable {
            tables: Vec::new(),
            flags,
            memory_flags,
            device_flags,
        };
        table.add_table(ROOT_LEVEL);
        table
    }

    /// Size in bytes, a multiple of 4096.
    pub(crate) fn size(&self) -> u64 {
        self.tables.len() as u64 * PAGE
    }

    /// The bytes for address `base`; the root is the first table.
    pub(crate) fn to_bytes(&self, base: u64) -> Vec<u8> {
        let tables = self.tables.iter();
        let entries = tables.flat_map(|table| table.entries.map(|entry| (table.level, entry)));
        entries
            .map(|(level, entry)| {
                if is_table(level, entry) {
                    entry + base
                } else {
                    entry
                }
            })
            .flat_map(u64::to_le_bytes)
            .collect()
    }

    fn add_table(&mut self, level: u32) -> usize {
        self.tables.push(Table {
            level,
            entries: [0; ENTRIES],
        });
        self.tables.len() - 1
    }

    /// Maps a range one to one, writable.
    pub(crate) fn map(&mut self, range: Chunk) {
        self.map_at(range.start, range, Access::Write);
    }

    /// Maps a range of physical memory at `address`. A range that is mapped already is replaced,
    /// unless by a larger page.
    pub(crate) fn map_at(&mut self, address: u64, range: Chunk, access: Access) {
        let mut done = 0;
        while done < range.size {
            let (to, from) = (address + done, range.start + done);
            let aligned = to.is_multiple_of(LARGE_PAGE) && from.is_multiple_of(LARGE_PAGE);
            if aligned && range.size - done >= LARGE_PAGE {
                self.map_page(to, from | LARGE, 2, access);
                done += LARGE_PAGE;
            } else {
                self.map_page(to, from, 1, access);
                done += PAGE;
            }
        }
    }

    /// Maps a page at `level`, adding tables as needed.
    fn map_page(&mut self, address: u64, frame: u64, level: u32, access: Access) {
        let mut table = 0;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            table = self.child(table, above, address);
        }
        let access = match access {
            Access::Write => WRITABLE | self.memory_flags,
            Access::ReadOnly => self.memory_flags,
            Access::Device => WRITABLE | self.device_flags,
        };
        self.tables[table].entries[index(address, level)] = frame | self.flags | access;
    }

    /// The next lower table for `address` below `table` of `level`.
    fn child(&mut self, table: usize, level: u32, address: u64) -> usize {
        let slot = index(address, level);
        let entry = self.tables[table].entries[slot];
        if entry & PRESENT != 0 {
            return (entry / PAGE) as usize;
        }
        let child = self.add_table(level - 1);
        self.tables[table].entries[slot] = (child as u64 * PAGE) | WRITABLE | self.flags;
        child
    }
}

/// Index of the entry for `address` in a table of `level`.
fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize % ENTRIES
}

/// Whether an entry of a table of `level` points to another table.
fn is_table(level: u32, entry: u64) -> bool {
    level > 1 && entry & PRESENT != 0 && entry & LARGE == 0
}
