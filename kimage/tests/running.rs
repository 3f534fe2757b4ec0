//! A kernel in memory by its own tables, in synthetic memory. (With real kernels: real_kernels.rs.)

mod synthetic;

use kimage::PhysicalMemory;
use kimage::log::{LogLayout, Placement};
use kimage::running::{Levels, PageTable, RunningError, RunningKernel, VirtualReadError};
use proptest::prelude::*;
use synthetic::image;
use synthetic::kallsyms::Order;
use synthetic::memory::{FakeMemory, PLACEMENT, SIZE, START};

const PAGE: u64 = 4096;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
/// Address of the tests' page tables, one page after the other.
const TABLES: u64 = START + 0x60_0000;
/// Address of the mapped memory.
const DATA: u64 = START + 0x80_0000;

/// Page tables under construction.
struct Tables<'a> {
    memory: &'a FakeMemory,
    levels: u32,
    next: u64,
}

impl<'a> Tables<'a> {
    fn new(memory: &'a FakeMemory, levels: Levels) -> Self {
        let levels = match levels {
            Levels::Four => 4,
            Levels::Five => 5,
        };
        let next = TABLES + PAGE;
        Self {
            memory,
            levels,
            next,
        }
    }

    /// Maps a page, or at a higher level a large page.
    fn map(&mut self, address: u64, physical: u64, level: u32) {
        let mut table = TABLES;
        for above in (level + 1..self.levels).rev() {
            let slot = table + (address >> (12 + 9 * above) & 511) * 8;
            let mut entry = [0; 8];
            self.memory.read(slot, &mut entry).unwrap();
            table = match u64::from_le_bytes(entry) {
                0 => {
                    self.next += PAGE;
                    self.memory.write_u64(slot, self.next | PRESENT | 0x62);
                    self.next
                }
                entry => entry & !0xfff,
            };
        }
        let slot = table + (address >> (12 + 9 * level) & 511) * 8;
        let large = if level > 0 { LARGE } else { 0 };
        self.memory
            .write_u64(slot, physical | PRESENT | large | 1 << 63);
    }
}

#[test]
fn pages_of_every_size_and_depth_are_found() {
    for levels in [Levels::Four, Levels::Five] {
        let memory = FakeMemory::new();
        let mut tables = Tables::new(&memory, levels);
        tables.map(0xffff_c900_0000_1000, DATA, 0);
        tables.map(0xffff_8880_0020_0000, 0x20_0000, 1);
        tables.map(0xffff_8880_4000_0000, 0x4000_0000, 2);
        let table = PageTable::new(&memory, TABLES, levels);
        assert_eq!(
            table.translate(0xffff_c900_0000_1234),
            Some((DATA + 0x234, PAGE - 0x234))
        );
        assert_eq!(
            table.translate(0xffff_8880_0023_4567),
            Some((0x23_4567, 0x20_0000 - 0x3_4567))
        );
        assert_eq!(
            table.translate(0xffff_8880_4123_4567),
            Some((0x4123_4567, 0x4000_0000 - 0x123_4567))
        );
        assert_eq!(table.translate(0xffff_c900_0000_2000), None);
        assert_eq!(table.translate(0x1000), None);
    }
    // Not canonical with 48 bits.
    let memory = FakeMemory::new();
    Tables::new(&memory, Levels::Four).map(0x0000_8000_0000_0000, DATA, 0);
    let table = PageTable::new(&memory, TABLES, Levels::Four);
    assert_eq!(table.translate(0x0000_8000_0000_0000), None);
}

#[test]
fn reading_crosses_pages_and_stops_at_unmapped_ones() {
    let memory = FakeMemory::new();
    let mut tables = Tables::new(&memory, Levels::Four);
    // Two distant pages, in reverse order; a third is outside of the memory.
    tables.map(0xffff_c900_0000_0000, DATA + 0x5000, 0);
    tables.map(0xffff_c900_0000_1000, DATA, 0);
    tables.map(0xffff_c900_0000_2000, START + SIZE as u64, 0);
    memory.write(DATA + 0x5ffe, b"ab");
    memory.write(DATA, b"cd");
    let table = PageTable::new(&memory, TABLES, Levels::Four);
    let mut text = [0; 4];
    table.read(0xffff_c900_0000_0ffe, &mut text).unwrap();
    assert_eq!(&text, b"abcd");
    let mut two = [0; 2];
    let failed = table.read(0xffff_c900_0000_1fff, &mut two);
    assert_eq!(failed, Err(VirtualReadError(0xffff_c900_0000_2000)));
}

proptest! {
    /// Whatever the tables contain, a walk ends.
    #[test]
    fn walks_of_hostile_tables_end(
        words in prop::collection::vec((0..1024_u64, any::<u64>()), 0..64),
        address in any::<u64>(),
        five in any::<bool>(),
    ) {
        let memory = FakeMemory::new();
        for (index, word) in words {
            // Some point back into the tables.
            let inside = TABLES | (word & 1) << 12 | PRESENT;
            memory.write_u64(TABLES + 8 * index, if word & 2 == 0 { inside } else { word });
        }
        let levels = if five { Levels::Five } else { Levels::Four };
        let table = PageTable::new(&memory, TABLES, levels);
        let _ = table.read(address, &mut [0; 64]);
    }
}

#[test]
fn memory_without_a_kernel_is_refused() {
    let layout = LogLayout::from_vmlinux(&image::vmlinux(Order::New)).unwrap();
    let memory = FakeMemory::new();
    let nothing = RunningKernel::attach(&layout, PLACEMENT, &memory);
    assert!(matches!(nothing, Err(RunningError::Symbols(_))));
    let outside = Placement {
        physical: 0,
        ..PLACEMENT
    };
    let nothing = RunningKernel::attach(&layout, outside, &memory);
    assert!(matches!(nothing, Err(RunningError::Read(_))));
}
