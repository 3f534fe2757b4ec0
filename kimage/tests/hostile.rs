//! Corrupted images and memory: never a panic, always an end, nothing out of bounds.
//!
//! Mutates synthetic images, and real ones where the test machine's kernels have been fetched, for
//! some seconds; the mutations follow from a fixed seed, so failures are reproducible.

mod fetched;
mod synthetic;

use kimage::log::{LogLayout, LogReader, locate, panicked};
use kimage::{Btf, ImageError, Loadable, Symbols, inspect, vmlinux};
use std::time::{Duration, Instant};
use synthetic::bzimage::{bzimage, packed};
use synthetic::image;
use synthetic::kallsyms::ORDERS;
use synthetic::memory::{DYNAMIC_ARRAYS, FakeMemory, PLACEMENT, of_link};
use synthetic::printk::{Printk, Which};

/// Time limit for a single image, generous for busy machines.
const CASE_MAX: Duration = Duration::from_secs(60);
/// Bytes that are more likely than others to hit a boundary.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// A generator of pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        if self.below(2) == 0 {
            EDGES[self.below(EDGES.len())]
        } else {
            self.next() as u8
        }
    }
}

/// Changes 1 to 8 runs of 1 to 8 bytes in `range` of the file; returns the previous bytes.
fn mutate(random: &mut Random, file: &mut [u8], range: std::ops::Range<usize>) -> Vec<(usize, u8)> {
    let mut before = Vec::new();
    for _ in 0..=random.below(8) {
        let start = range.start + random.below(range.len());
        let end = (start + 1 + random.below(8)).min(range.end);
        for (at, byte) in file.iter_mut().enumerate().take(end).skip(start) {
            before.push((at, *byte));
            *byte = random.byte();
        }
    }
    before
}

fn undo(file: &mut [u8], before: Vec<(usize, u8)>) {
    for (at, byte) in before.into_iter().rev() {
        file[at] = byte;
    }
}

/// A loader that trusts the description must stay within the file and the footprint.
fn check(file: &[u8], loadable: &Loadable) {
    assert!(loadable.alignment.is_power_of_two());
    assert!(loadable.entry_offset < loadable.footprint);
    assert!(loadable.footprint <= 1 << 33);
    assert!(loadable.setup_header.len() <= 0x290 - 0x1f1);
    assert!(!loadable.release.is_empty() && loadable.release.is_ascii());
    let mut end = 0;
    for segment in &loadable.segments {
        assert!(segment.file_offset + segment.size <= file.len() as u64);
        assert!(segment.load_offset >= end);
        end = segment.load_offset + segment.size;
        assert!(end <= loadable.footprint);
    }
}

/// Reads everything from an ELF file.
fn read_tables(elf: &[u8]) {
    if let Ok(symbols) = Symbols::from_vmlinux(elf) {
        assert!(
            symbols
                .iter()
                .all(|symbol| symbols.address(symbol.name).is_some())
        );
    }
    if let Ok(btf) = Btf::from_vmlinux(elf) {
        let _ = btf.field("printk_info", "level");
        let _ = btf.offset_of("printk_ringbuffer", "desc_ring.tail_id");
    }
    let _ = LogLayout::from_vmlinux(elf);
}

/// Reads everything from a file, and checks the time it takes.
fn exercise(file: &[u8]) {
    let start = Instant::now();
    if let Ok(loadable) = inspect(file) {
        check(file, &loadable);
    }
    match vmlinux(file) {
        Ok(elf) => {
            assert!(elf.len() <= 512 << 20);
            read_tables(&elf);
        }
        Err(ImageError::NotAKernel) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert!(start.elapsed() < CASE_MAX);
}

#[test]
fn mutated_elf_files() {
    let mut random = Random(1);
    for order in ORDERS {
        let whole = image::vmlinux(order);
        for round in 0..240 {
            let mut file = whole.clone();
            // Headers, symbol tables, and types with section headers, in turn.
            let range = match round % 4 {
                0 => 0..0x100,
                1 => image::TEXT_OFFSET..image::DATA_OFFSET,
                2 => image::DATA_OFFSET + image::DATA_SIZE..file.len(),
                _ => 0..file.len(),
            };
            mutate(&mut random, &mut file, range);
            exercise(&file);
        }
    }
}

#[test]
fn mutated_symbol_tables() {
    let mut random = Random(2);
    for order in ORDERS {
        let mut file = image::vmlinux(order);
        let size = image::symbols().len() * 40;
        let tables = image::TEXT_OFFSET + 0x200
            ..image::TEXT_OFFSET + 0x200 + size.min(image::TEXT_SIZE - 0x200);
        for _ in 0..250 {
            let before = mutate(&mut random, &mut file, tables.clone());
            read_tables(&file);
            undo(&mut file, before);
        }
    }
}

#[test]
fn mutated_bzimages_in_every_compression() {
    let mut random = Random(3);
    for (_, payload) in packed(&image::vmlinux(ORDERS[0])) {
        let whole = bzimage(&payload);
        for round in 0..40 {
            let mut file = whole.clone();
            let range = if round % 2 == 0 {
                0x1f0..0x310
            } else {
                0x800..file.len()
            };
            mutate(&mut random, &mut file, range);
            exercise(&file);
        }
    }
}

#[test]
fn truncated_images() {
    let mut random = Random(4);
    let mut images: Vec<Vec<u8>> = ORDERS.map(image::vmlinux).into();
    images.extend(
        packed(&images[0])
            .into_iter()
            .map(|(_, payload)| bzimage(&payload)),
    );
    for file in images {
        for _ in 0..40 {
            let size = random.below(file.len());
            exercise(&file[..size]);
        }
        for size in 0..0x400 {
            let _ = inspect(&file[..size]);
        }
    }
}

#[test]
fn random_bytes() {
    let mut random = Random(5);
    for round in 0..2000 {
        let mut file: Vec<u8> = (0..random.below(3000)).map(|_| random.byte()).collect();
        let magic: &[u8] = if round % 2 == 0 {
            b"\x7fELF\x02\x01\x01"
        } else {
            b"HdrS"
        };
        let at = if round % 2 == 0 { 0 } else { 0x202 };
        if file.len() > 0x300 {
            file[at..at + magic.len()].copy_from_slice(magic);
            file[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        }
        exercise(&file);
    }
}

#[test]
fn mutated_real_images() {
    let start = Instant::now();
    let mut random = Random(6);
    for path in fetched::kernels() {
        let Ok(mut file) = std::fs::read(path) else {
            continue;
        };
        for _ in 0..2000 {
            let before = mutate(&mut random, &mut file, 0x1f0..0x270);
            if let Ok(loadable) = inspect(&file) {
                check(&file, &loadable);
            }
            undo(&mut file, before);
        }
        let Ok(mut elf) = vmlinux(&file).map(std::borrow::Cow::into_owned) else {
            continue;
        };
        for round in 0_u32.. {
            if start.elapsed() > Duration::from_secs(5) {
                break;
            }
            let range = if round % 2 == 0 {
                0..0x200
            } else {
                0x120_0000.min(elf.len())..elf.len()
            };
            let before = mutate(&mut random, &mut elf, range);
            read_tables(&elf);
            undo(&mut elf, before);
        }
    }
}

/// Fills a ring, and writes random words to the log's memory.
fn corrupted_log(random: &mut Random, memory: &FakeMemory, which: Which) {
    let mut printk = Printk::new(memory, which, 5, 10);
    for number in 0..random.below(80) {
        printk.log(memory, format!("record {number}").as_bytes());
    }
    let (header, arrays) = match which {
        Which::Static => (of_link(image::STATIC_RING), of_link(image::STATIC_ARRAYS)),
        Which::Dynamic => (of_link(image::DYNAMIC_RING), DYNAMIC_ARRAYS),
    };
    for _ in 0..random.below(20) {
        let (start, words) = if random.below(4) == 0 {
            (header, 11)
        } else {
            (arrays, 600)
        };
        let word = match random.below(4) {
            0 => random.next(),
            1 => u64::MAX - random.next() % 64,
            2 => (2 << 62) | (random.next() % 64),
            _ => random.next() % 64,
        };
        memory.write_u64(start + 8 * random.below(words) as u64, word);
    }
}

#[test]
fn corrupted_logs() {
    let layout = LogLayout::from_vmlinux(&image::vmlinux(ORDERS[2])).unwrap();
    let memory = FakeMemory::new();
    let mut random = Random(7);
    for round in 0..3000 {
        let which = if round % 2 == 0 {
            Which::Static
        } else {
            Which::Dynamic
        };
        corrupted_log(&mut random, &memory, which);
        memory.reads.set(0);
        let _ = locate(&layout, &memory);
        let _ = panicked(&layout, PLACEMENT, &memory);
        let mut log = LogReader::new(&layout, PLACEMENT, &memory);
        log.set_stopped(round % 3 == 0);
        let mut records = 0_u64;
        let mut position = 0;
        while let Ok(Some(record)) = log.next_record() {
            assert!(record.seq >= position && log.position() == record.seq + 1);
            position = log.position();
            records += 1;
            // Memory without a writer holds no more records than it has room for.
            assert!(records * 88 < 10 << 20);
        }
        assert!(memory.reads.get() < 20_000_000);
    }
}

#[test]
fn corrupted_layouts() {
    let layout = LogLayout::from_vmlinux(&image::vmlinux(ORDERS[2])).unwrap();
    let json = serde_json::to_value(&layout).unwrap();
    let memory = FakeMemory::new();
    let mut random = Random(8);
    for _ in 0..1000 {
        corrupted_log(&mut random, &memory, Which::Static);
        let mut json = json.clone();
        let fields = if random.below(2) == 0 {
            &mut json
        } else {
            &mut json["structures"]
        };
        let fields = fields.as_object_mut().unwrap();
        let index = random.below(fields.len());
        let value = fields.values_mut().nth(index).unwrap();
        let small = random.next() % 100;
        *value = if random.below(2) == 0 {
            small.into()
        } else {
            random.next().into()
        };
        let Ok(layout) = serde_json::from_value::<LogLayout>(json) else {
            continue;
        };
        let _ = locate(&layout, &memory);
        let _ = panicked(&layout, PLACEMENT, &memory);
        let mut log = LogReader::new(&layout, PLACEMENT, &memory);
        for _ in 0..100 {
            let Ok(Some(_)) = log.next_record() else {
                break;
            };
        }
    }
}
