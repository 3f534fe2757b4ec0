//! Reading the log of a running kernel, in synthetic memory.

mod synthetic;

use kimage::PhysicalMemory;
use kimage::log::{
    Caller, LogError, LogLayout, LogReader, Record, format_record, halted, locate, panicked,
    resched_count,
};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use synthetic::image;
use synthetic::kallsyms::Order;
use synthetic::memory::{DIRECT_MAP, FakeMemory, PLACEMENT, of_link};
use synthetic::printk::{Printk, State, Which};

fn layout() -> LogLayout {
    LogLayout::from_vmlinux(&image::vmlinux(Order::New)).unwrap()
}

fn read_all<M: PhysicalMemory + ?Sized>(log: &mut LogReader<'_, M>) -> Vec<Record> {
    std::iter::from_fn(|| log.next_record().unwrap()).collect()
}

fn texts(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.text.as_str()).collect()
}

#[test]
fn records_are_read_in_order_with_all_fields() {
    let (layout, memory) = (layout(), FakeMemory::new());
    let mut printk = Printk::new(&memory, Which::Static, 4, 9);
    for text in ["Linux version 6.1", "", "two\nlines"] {
        printk.log(&memory, text.as_bytes());
    }
    let placement = locate(&layout, &memory).unwrap();
    assert_eq!(placement, PLACEMENT);
    let mut log = LogReader::new(&layout, placement, &memory);
    let records = read_all(&mut log);
    assert_eq!(texts(&records), ["Linux version 6.1", "", "two\nlines"]);
    let caller = Caller::Cpu(2);
    let text = "two\nlines".to_owned();
    let third = Record {
        seq: 2,
        timestamp_ns: 2_000_000,
        level: 6,
        facility: 0,
        caller,
        text,
    };
    assert_eq!(records[2], third);
    assert_eq!(
        format_record(&third),
        "[    0.002000] two\n[    0.002000] lines"
    );
    assert_eq!((log.lost(), log.position()), (0, 3));
    printk.log(&memory, b"later");
    assert_eq!(texts(&read_all(&mut log)), ["later"]);
}

#[test]
fn the_layout_survives_json() {
    let layout = layout();
    let json = serde_json::to_string(&layout).unwrap();
    assert!(json.len() < 2000);
    assert_eq!(serde_json::from_str::<LogLayout>(&json).unwrap(), layout);
}

#[test]
fn a_kernel_without_a_log_is_not_found() {
    let (layout, memory) = (layout(), FakeMemory::new());
    assert_eq!(locate(&layout, &memory), None);
    let mut printk = Printk::new(&memory, Which::Static, 4, 9);
    assert_eq!(locate(&layout, &memory), None);
    printk.log(&memory, b"now");
    assert_eq!(locate(&layout, &memory), Some(PLACEMENT));
}

#[test]
fn a_copy_being_decompressed_is_not_taken_for_the_kernel() {
    let (layout, memory) = (layout(), FakeMemory::new());
    Printk::new(&memory, Which::Static, 4, 9).log(&memory, b"text");
    // The banner and variables as in the image, 2 MiB below the running kernel.
    memory.write(
        of_link(image::BANNER_ADDRESS) - (2 << 20),
        image::BANNER.as_bytes(),
    );
    memory.write_u64(of_link(image::PRB) - (2 << 20), image::STATIC_RING);
    assert_eq!(locate(&layout, &memory), Some(PLACEMENT));
    memory.write(of_link(image::BANNER_ADDRESS), b"Linux version 5");
    assert_eq!(locate(&layout, &memory), None);
}

#[test]
fn a_panic_is_detected() {
    let (layout, memory) = (layout(), FakeMemory::new());
    assert_eq!(panicked(&layout, PLACEMENT, &memory), Ok(false));
    memory.write(of_link(image::PANIC_CPU), &3_i32.to_le_bytes());
    assert_eq!(panicked(&layout, PLACEMENT, &memory), Ok(true));
    // Cleared for another start.
    memory.write(of_link(image::PANIC_CPU), &[0; 4]);
    memory.write(of_link(image::BANNER_ADDRESS), &[0; image::BANNER.len()]);
    assert_eq!(panicked(&layout, PLACEMENT, &memory), Ok(false));
}

#[test]
fn liveness_is_read() {
    let (layout, memory) = (layout(), FakeMemory::new());
    // Before the first core is set up, its variables are those of the image, or none.
    assert!(resched_count(&layout, PLACEMENT, &memory).is_err());
    let area = 0x1_4010_4000;
    memory.write_u64(of_link(image::PER_CPU_OFFSET), DIRECT_MAP + area);
    assert_eq!(resched_count(&layout, PLACEMENT, &memory), Ok(Some(0)));
    memory.write(area + image::IRQ_STAT + 4, &7_u32.to_le_bytes());
    assert_eq!(resched_count(&layout, PLACEMENT, &memory), Ok(Some(7)));
    assert_eq!(halted(&layout, PLACEMENT, &memory), Ok(false));
    memory.write(of_link(image::SYSTEM_STATE), &4_u32.to_le_bytes());
    assert_eq!(halted(&layout, PLACEMENT, &memory), Ok(true));
}

#[test]
fn liveness_of_newer_kernels_is_read() {
    let newer = image::vmlinux(Order::OwnPlace);
    let (layout, memory) = (LogLayout::from_vmlinux(&newer).unwrap(), FakeMemory::new());
    assert!(resched_count(&layout, PLACEMENT, &memory).is_err());
    // Offset of the first core's variables from those of the image, at run time.
    let (area, runs_at) = (
        0x1_4010_4000,
        image::IRQ_STAT_LINK + PLACEMENT.virtual_offset,
    );
    let behind = (DIRECT_MAP + area).wrapping_sub(runs_at);
    memory.write_u64(of_link(image::PER_CPU_OFFSET), behind);
    memory.write(area + 4, &7_u32.to_le_bytes());
    assert_eq!(resched_count(&layout, PLACEMENT, &memory), Ok(Some(7)));
}

#[test]
fn the_reader_follows_the_kernel_to_its_larger_ring() {
    let (layout, memory) = (layout(), FakeMemory::new());
    let mut early = Printk::new(&memory, Which::Static, 4, 9);
    early.log(&memory, b"a");
    early.log(&memory, b"b");
    let mut log = LogReader::new(&layout, PLACEMENT, &memory);
    assert_eq!(texts(&read_all(&mut log)), ["a", "b"]);
    let mut late = Printk::new(&memory, Which::Dynamic, 8, 13);
    for text in ["a", "b", "c"] {
        late.log(&memory, text.as_bytes());
    }
    assert_eq!(texts(&read_all(&mut log)), ["c"]);
    assert_eq!(locate(&layout, &memory), Some(PLACEMENT));
}

#[test]
fn unfinished_records_are_read_only_after_the_kernel_has_stopped() {
    let (layout, memory) = (layout(), FakeMemory::new());
    let mut printk = Printk::new(&memory, Which::Static, 4, 9);
    printk.log(&memory, b"whole");
    let being_written = printk.reserve(&memory, b"half");
    printk.log(&memory, b"behind");
    let continued = printk.reserve(&memory, b"last record");
    printk.set_state_of(&memory, continued, State::Committed);
    let mut log = LogReader::new(&layout, PLACEMENT, &memory);
    assert_eq!(texts(&read_all(&mut log)), ["whole"]);
    assert_eq!(log.position(), being_written);
    log.set_stopped(true);
    assert_eq!(texts(&read_all(&mut log)), ["behind", "last record"]);
    assert_eq!(log.lost(), 1);
}

#[test]
fn last_records_and_seeking() {
    let (layout, memory) = (layout(), FakeMemory::new());
    let mut printk = Printk::new(&memory, Which::Static, 4, 10);
    for number in 0..100 {
        printk.log(&memory, number.to_string().as_bytes());
    }
    let mut log = LogReader::new(&layout, PLACEMENT, &memory);
    assert_eq!(texts(&log.last(3).unwrap()), ["97", "98", "99"]);
    log.seek(98);
    assert_eq!(texts(&read_all(&mut log)), ["98", "99"]);
    log.seek(0);
    assert_eq!(read_all(&mut log).len(), 16);
    log.seek(0);
    assert_eq!(log.last(usize::MAX).unwrap().len(), 16);
    log.seek(u64::MAX);
    assert_eq!(log.next_record(), Ok(None));
}

#[test]
fn invalid_pointers_are_errors() {
    let (layout, memory) = (layout(), FakeMemory::new());
    let mut printk = Printk::new(&memory, Which::Dynamic, 4, 9);
    printk.log(&memory, b"text");
    let next = || LogReader::new(&layout, PLACEMENT, &memory).next_record();
    let descs = of_link(image::DYNAMIC_RING) + 8;
    memory.write_u64(descs, DIRECT_MAP + (1 << 40));
    assert!(matches!(next(), Err(LogError::Read(_))));
    memory.write_u64(descs, 0);
    assert!(matches!(next(), Err(LogError::Damaged(_))));
    memory.write_u64(of_link(image::PRB), u64::MAX);
    assert!(matches!(next(), Err(LogError::Damaged(_))));
}

#[test]
fn a_text_of_another_record_is_lost() {
    let (layout, memory) = (layout(), FakeMemory::new());
    let mut printk = Printk::new(&memory, Which::Static, 4, 9);
    printk.log(&memory, b"overwritten");
    printk.log(&memory, b"whole");
    memory.write_u64(printk.data, 0);
    let mut log = LogReader::new(&layout, PLACEMENT, &memory);
    assert_eq!(texts(&read_all(&mut log)), ["whole"]);
    assert_eq!(log.lost(), 1);
}

/// A text with its record's number, of a size that varies irregularly.
fn text_of(seq: u64) -> String {
    let size = (seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
    format!("record {seq}: {}", (seq % 10).to_string().repeat(size))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_in_the_ring_are_read_and_the_others_counted(
        rounds in prop::collection::vec(prop::collection::vec(0..150_usize, 0..40), 1..5),
        count_bits in 1..6_u32,
        size_bits in 7..11_u32,
        dynamic in any::<bool>(),
        exact_fit in any::<bool>(),
    ) {
        let (layout, memory) = (layout(), FakeMemory::new());
        let which = if dynamic { Which::Dynamic } else { Which::Static };
        let mut printk = Printk::new(&memory, which, count_bits, size_bits);
        printk.exact_fit = exact_fit;
        let mut log = LogReader::new(&layout, PLACEMENT, &memory);
        let has_room = |size: usize| (8 + size).next_multiple_of(8) <= 1 << (size_bits - 1);
        let mut sizes = Vec::new();
        let (mut read, mut lost) = (0, 0);
        for round in rounds {
            for size in round {
                let text = vec![b'a' + (printk.next_seq % 26) as u8; size];
                printk.log(&memory, &text);
                sizes.push(size);
            }
            let records = read_all(&mut log);
            let expected_seqs: Vec<u64> = (read.max(printk.first_seq())..printk.next_seq)
                .filter(|seq| has_room(sizes[*seq as usize]))
                .collect();
            let seqs: Vec<u64> = records.iter().map(|record| record.seq).collect();
            prop_assert_eq!(&seqs, &expected_seqs);
            for record in &records {
                let expected = ((b'a' + (record.seq % 26) as u8) as char).to_string();
                prop_assert_eq!(&record.text, &expected.repeat(sizes[record.seq as usize]));
            }
            lost += printk.next_seq - read - records.len() as u64;
            read = printk.next_seq;
            prop_assert_eq!(log.position(), read);
            prop_assert_eq!(log.lost(), lost);
        }
    }

    #[test]
    fn records_are_consistent_while_the_kernel_overwrites_them(
        pace in 1..40_u64,
        count_bits in 2..6_u32,
        size_bits in 8..11_u32,
    ) {
        let (layout, memory) = (layout(), FakeMemory::new());
        let printk = Rc::new(RefCell::new(Printk::new(&memory, Which::Static, count_bits, size_bits)));
        printk.borrow_mut().log(&memory, text_of(0).as_bytes());
        let writer = Rc::clone(&printk);
        memory.run_between_reads(move |memory| {
            let mut printk = writer.borrow_mut();
            let read = memory.reads.get();
            if read % pace == 0 && printk.next_seq < 500 {
                let seq = printk.next_seq;
                // Sometimes the reader sees a half-written record.
                if read % 3 == 0 {
                    printk.reserve(memory, text_of(seq).as_bytes());
                    printk.set_state_of(memory, seq, State::Committed);
                } else {
                    printk.log(memory, text_of(seq).as_bytes());
                }
                let before = seq.saturating_sub(1);
                if before >= printk.first_seq() {
                    printk.set_state_of(memory, before, State::Finalized);
                }
            }
        });
        let mut log = LogReader::new(&layout, PLACEMENT, &memory);
        let mut records = Vec::new();
        // Until the kernel has written its last record, and all of them have been read.
        while printk.borrow().next_seq < 500 {
            records.extend(log.next_record().unwrap());
        }
        records.extend(read_all(&mut log));
        for record in &records {
            prop_assert_eq!(&record.text, &text_of(record.seq));
        }
        prop_assert!(records.is_sorted_by(|one, next| one.seq < next.seq));
        prop_assert_eq!(records.len() as u64 + log.lost(), log.position());
        prop_assert!(log.position() >= 499);
    }
}
