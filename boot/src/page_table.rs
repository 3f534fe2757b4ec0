//! The page table that a node's first core begins with: its memory, one to one.
//!
//! Mapped are the node's chunks, the page that the start comes from, and page 0, with 2 MiB pages where a chunk
//! covers one whole and with 4 KiB pages elsewhere: so nothing but these can be reached through it. The kernel
//! replaces it early, yet reads boot parameters, command line and its own image through it first.
//!
//! Source: Intel SDM volume 3, section 4.5 "4-level paging". Entries use neither NX (EFER.NXE is off at the start)
//! nor 1 GiB pages (older cores lack them).

use crate::chunk::{Chunk, Memory, PAGE};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;

/// Size of a large page, in bytes.
const LARGE_PAGE: u64 = 2 << 20;
const ENTRIES: usize = 512;
/// Level of the root; a table of level 1 holds 4 KiB pages, one of level 2 may hold 2 MiB pages.
const ROOT_LEVEL: u32 = 4;

/// The page of the BIOS data area. A 6.1 kernel's decompressor looks there for the end of low memory, before it has
/// page tables of its own (`find_trampoline_placement()` in arch/x86/boot/compressed/pgtable_64.c).
const BIOS_DATA_AREA: Chunk = Chunk {
    start: 0,
    size: PAGE,
};

struct Table {
    level: u32,
    /// Entries for pages are final; those for tables hold the table's offset from the root instead of its address.
    entries: [u64; ENTRIES],
}

/// A page table that does not know yet where it will lie.
pub(crate) struct PageTable {
    tables: Vec<Table>,
}

impl PageTable {
    /// Maps `memory`, the page at `trampoline` and page 0 one to one.
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

    /// Its size in bytes, a multiple of 4096.
    pub(crate) fn size(&self) -> u64 {
        self.tables.len() as u64 * PAGE
    }

    /// Its bytes when it lies at `base`; the root is the first of its tables.
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

    fn map(&mut self, stretch: Chunk) {
        let mut address = stretch.start;
        while address < stretch.end() {
            let large = address.is_multiple_of(LARGE_PAGE) && stretch.end() - address >= LARGE_PAGE;
            if large {
                self.map_page(address, 2, LARGE);
                address += LARGE_PAGE;
            } else {
                self.map_page(address, 1, 0);
                address += PAGE;
            }
        }
    }

    /// Enters a page in the table of `level` that is responsible for `address`, making tables on the way down.
    fn map_page(&mut self, address: u64, level: u32, flags: u64) {
        let mut table = 0;
        for above in (level + 1..=ROOT_LEVEL).rev() {
            table = self.child(table, above, address);
        }
        self.tables[table].entries[index(address, level)] = address | flags | WRITABLE | PRESENT;
    }

    /// The table one below `table`, which is of `level`, on the way to `address`.
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

/// Which of a table's entries is responsible for `address`.
fn index(address: u64, level: u32) -> usize {
    (address >> (12 + 9 * (level - 1))) as usize % ENTRIES
}

/// Whether `entry` of a table of `level` leads to another table.
fn is_table(level: u32, entry: u64) -> bool {
    level > 1 && entry & PRESENT != 0 && entry & LARGE == 0
}
