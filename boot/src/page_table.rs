//! The initial page table of a node's first core: an identity mapping of its memory.
//!
//! It maps the node's chunks, the trampoline page and page 0, with 2 MiB pages where possible and 4
//! KiB pages elsewhere, and nothing else. The kernel replaces it early, but reads boot parameters,
//! command line and its own image through it first.
//!
//! Source: Intel SDM volume 3, section 4.5 "4-level paging". Entries use neither NX (EFER.NXE is
//! off at start) nor 1 GiB pages (older cores lack them).

use crate::chunk::{Chunk, Memory, PAGE};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;

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

/// A page table without a fixed address.
pub(crate) struct PageTable {
    tables: Vec<Table>,
}

impl PageTable {
    /// An identity mapping of `memory`, the page at `trampoline` and page 0.
    pub(crate) fn identity(memory: &Memory, trampoline: u64) -> PageTable {
        let mut table = PageTable { tables: Vec::new() };
        table.add_table(ROOT_LEVEL);
        table.map(BIOS_DATA_AREA);
        table.map(Chunk {
            start: trampoline,
            size: PAGE,
        });
        memory.all().for_each(|chunk| table.map(chunk));
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

    fn map(&mut self, range: Chunk) {
        let mut address = range.start;
        while address < range.end() {
            let large = address.is_multiple_of(LARGE_PAGE) && range.end() - address >= LARGE_PAGE;
            if large {
                self.map_page(address, 2, LARGE);
                address += LARGE_PAGE;
            } else {
                self.map_page(address, 1, 0);
                address += PAGE;
            }
        }
    }

    /// Maps a page at `level`, adding tables as needed.
    fn map_page(&mut self, address: u64, level: u32, flags: u64) {
        let mut table = 0;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            table = self.child(table, above, address);
        }
        self.tables[table].entries[index(address, level)] = address | flags | WRITABLE | PRESENT;
    }

    /// The next lower table for `address` below `table` of `level`.
    fn child(&mut self, table: usize, level: u32, address: u64) -> usize {
        let slot = index(address, level);
        let entry = self.tables[table].entries[slot];
        if entry & PRESENT != 0 {
            return (entry / PAGE) as usize;
        }
        let child = self.add_table(level - 1);
        self.tables[table].entries[slot] = (child as u64 * PAGE) | WRITABLE | PRESENT;
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
