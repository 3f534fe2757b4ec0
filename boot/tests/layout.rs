//! Properties of every layout, over random memory, kernels and initrds.

mod support;

use insula_boot::{Chunk, E820Entry, E820Type, Layout, LayoutError, NodeDescription, lay_out};
use proptest::prelude::*;
use support::{GIB, KERNEL_MIN, LOW, MIB, PAGE, kernel, node, read, read_u8, read_u32, read_u64};

/// A low chunk and disjoint others, given by gaps and sizes in units of 4 KiB or 2 MiB.
fn memory() -> impl Strategy<Value = Vec<Chunk>> {
    let low = (0x10u64..=0x90, 9u64..=0x10);
    let range = (0u64..40, 1u64..60);
    let unit = prop_oneof![4 => Just(2 * MIB), 1 => Just(PAGE)];
    let base = prop_oneof![
        Just(MIB),
        Just(16 * MIB),
        Just(4 * GIB),
        Just(3 * GIB - 2 * MIB)
    ];
    let ranges = prop_oneof![
        4 => prop::collection::vec((range.clone(), unit.clone()), 1..12),
        1 => prop::collection::vec((range, unit), 120..420),
    ];
    (low, base, ranges).prop_map(|((low, low_pages), base, ranges)| {
        let mut chunks = Vec::new();
        let mut next = base;
        for ((gap, size), unit) in ranges {
            let start = (next + gap * unit).next_multiple_of(unit);
            let size = size * unit;
            chunks.push(Chunk { start, size });
            next = start + size;
        }
        let start = low * PAGE;
        let size = (low_pages * PAGE).min(640 * 1024 - start);
        chunks.push(Chunk { start, size });
        chunks
    })
}

fn range_of(entry: &E820Entry) -> Chunk {
    Chunk {
        start: entry.start,
        size: entry.size,
    }
}

/// Whether `inner` lies within one of `outer`.
fn within(inner: Chunk, outer: &[Chunk]) -> bool {
    outer
        .iter()
        .any(|outer| outer.start <= inner.start && inner.end() <= outer.end())
}

/// Sorted and merged.
fn merged(chunks: &[Chunk]) -> Vec<Chunk> {
    let mut sorted = chunks.to_vec();
    sorted.sort();
    let mut merged: Vec<Chunk> = Vec::new();
    for chunk in sorted {
        match merged.last_mut() {
            Some(last) if last.end() == chunk.start => last.size += chunk.size,
            _ => merged.push(chunk),
        }
    }
    merged
}

fn ranges(layout: &Layout, kind: E820Type) -> Vec<Chunk> {
    let entries = layout.e820.iter().filter(|entry| entry.kind == kind);
    merged(&entries.map(range_of).collect::<Vec<_>>())
}

fn check_map(layout: &Layout, chunks: &[Chunk]) {
    for pair in layout.e820.windows(2) {
        assert!(range_of(&pair[0]).end() <= pair[1].start, "{pair:?}");
    }
    let all: Vec<Chunk> = layout.e820.iter().map(range_of).collect();
    assert_eq!(merged(&all), merged(chunks));
}

fn check_places(layout: &Layout, node: &NodeDescription) {
    let ram = ranges(layout, E820Type::Ram);
    let reserved = ranges(layout, E820Type::Reserved);
    let mut places = Vec::new();
    let kernel = Chunk {
        start: layout.kernel,
        size: node.kernel.footprint,
    };
    assert!(
        within(kernel, &ram),
        "kernel at {kernel:x?} not in {ram:x?}"
    );
    assert!(layout.kernel.is_multiple_of(node.kernel.alignment) && layout.kernel >= KERNEL_MIN);
    assert_eq!(layout.entry, layout.kernel + 0x200);
    places.push(kernel);
    if node.initrd_size > 0 {
        let initrd = Chunk {
            start: layout.initrd,
            size: node.initrd_size,
        };
        assert!(
            within(initrd, &ram),
            "initrd at {initrd:x?} not in {ram:x?}"
        );
        assert!(initrd.start.is_multiple_of(PAGE));
        places.push(initrd);
    }
    for piece in &layout.pieces {
        let place = Chunk {
            start: piece.address,
            size: piece.bytes.len() as u64,
        };
        assert!(
            within(place, &reserved),
            "piece at {place:x?} not in {reserved:x?}"
        );
        places.push(place);
    }
    places.sort();
    for pair in places.windows(2) {
        assert!(pair[0].end() <= pair[1].start, "{pair:x?} overlap");
    }
}

fn check_low(layout: &Layout) {
    let low = layout.e820.iter().filter(|entry| entry.start < MIB);
    let kinds: Vec<_> = low.clone().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [E820Type::Ram, E820Type::Reserved]);
    let [ram, io_apic] = &low.collect::<Vec<_>>()[..] else {
        panic!("two entries");
    };
    assert!(ram.size >= 0x7000);
    assert_eq!(io_apic.size, 2 * PAGE);
    assert_eq!(read_u32(layout, io_apic.start + 0x10), 0x0017_0020);
}

fn check_power_bytes(layout: &Layout) {
    assert_eq!(layout.power_off / PAGE, layout.reset / PAGE);
    assert_ne!(layout.power_off, layout.reset);
    assert_eq!(read_u8(layout, layout.power_off), 0);
    assert_eq!(read_u8(layout, layout.reset), 0);
    let others = layout
        .pieces
        .iter()
        .filter(|piece| piece.address / PAGE == layout.power_off / PAGE);
    assert_eq!(
        others.count(),
        1,
        "the ending bytes have a page of their own"
    );
}

/// The map as the kernel assembles it: the page's table, then setup data.
fn check_map_with_setup_data(layout: &Layout, random_seed: &[u8]) {
    let count = u64::from(read_u8(layout, layout.argument + 0x1e8));
    let setup_data = read_u64(layout, layout.argument + 0x250);
    let mut tables = vec![(layout.argument + 0x2d0, count)];
    let mut seed = Vec::new();
    let mut next = setup_data;
    while next != 0 {
        let size = read_u32(layout, next + 12);
        match read_u32(layout, next + 8) {
            1 => tables.push((next + 16, u64::from(size) / 20)),
            9 => seed = read(layout, next + 16, size as usize),
            kind => panic!("setup data of kind {kind}"),
        }
        next = read_u64(layout, next);
    }
    assert_eq!(seed, random_seed);
    let at = tables
        .into_iter()
        .flat_map(|(table, count)| (0..count).map(move |n| table + n * 20));
    let entries = at.map(|at| {
        let word = |offset| read_u64(layout, at + offset);
        (word(0), word(8), read_u32(layout, at + 16))
    });
    let expected = layout
        .e820
        .iter()
        .map(|entry| (entry.start, entry.size, entry.kind as u32));
    assert_eq!(entries.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

fn check(layout: &Layout, node: &NodeDescription) {
    check_map(layout, node.chunks);
    check_places(layout, node);
    check_low(layout);
    check_power_bytes(layout);
    check_map_with_setup_data(layout, node.random_seed);
}

/// The largest room for a kernel in one of `chunks`.
fn kernel_room(chunks: &[Chunk]) -> u64 {
    let room = |chunk: &Chunk| {
        let start = chunk.start.max(KERNEL_MIN).next_multiple_of(2 * MIB);
        chunk.end().saturating_sub(start)
    };
    merged(chunks).iter().map(room).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_layout_is_consistent(
        chunks in memory(),
        footprint in MIB..64 * MIB,
        initrd_size in prop_oneof![Just(0), 1..40 * MIB],
        spare_cpus in prop::sample::subsequence((10u32..255).collect::<Vec<_>>(), 0..245),
        persistent in prop::option::of((0u64..4, 1u64..9)),
        random_seed in prop::collection::vec(any::<u8>(), 0..65),
    ) {
        let kernel = kernel(footprint);
        let top = merged(&chunks).iter().map(Chunk::end).max().unwrap_or_default();
        let persistent: Vec<_> = persistent
            .map(|(skip, size)| Chunk { start: top + skip * 2 * MIB, size: size * 2 * MIB })
            .into_iter()
            .collect();
        let node = NodeDescription {
            initrd_size,
            spare_cpus: &spare_cpus,
            persistent: &persistent,
            random_seed: &random_seed,
            ..node(&kernel, &chunks)
        };
        match lay_out(&node) {
            Ok(layout) => check(&layout, &node),
            Err(LayoutError::KernelDoesNotFit { needed, largest }) => {
                prop_assert_eq!(needed, footprint);
                prop_assert_eq!(largest, kernel_room(&chunks));
                prop_assert!(needed > largest);
            }
            Err(LayoutError::InitrdDoesNotFit { .. } | LayoutError::FirmwareDoesNotFit { .. }) => {
                // The kernel fits; with twice the memory everything would.
                let room = footprint.next_multiple_of(PAGE) + initrd_size.next_multiple_of(PAGE) + 2 * MIB;
                prop_assert!(kernel_room(&chunks) < room);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// No description causes a panic.
    #[test]
    fn refuses_without_panic(
        chunks in prop::collection::vec((any::<u64>(), any::<u64>()), 0..4),
        aligned in any::<bool>(),
        header in prop::collection::vec(any::<u8>(), 0..200),
        alignment in any::<u64>(),
        footprint in prop_oneof![any::<u64>(), 0..64 * MIB],
        initrd_size in prop_oneof![any::<u64>(), Just(u64::MAX)],
        entry_offset in prop_oneof![Just(0), any::<u64>()],
        trampoline in any::<u64>(),
        cpus in prop::collection::vec(any::<u32>(), 0..4),
        command_line in any::<String>(),
    ) {
        let mask = if aligned { !(PAGE - 1) & ((1 << 40) - 1) } else { u64::MAX };
        let mut chunks: Vec<Chunk> =
            chunks.into_iter().map(|(start, size)| Chunk { start: start & mask, size: size & mask & (64 * GIB - 1) }).collect();
        chunks.push(LOW);
        let mut kernel = kernel(MIB);
        if !header.is_empty() { kernel.setup_header = header; }
        if !aligned { kernel.alignment = alignment; }
        kernel.footprint = footprint;
        kernel.entry_offset = entry_offset;
        let odd = NodeDescription {
            kernel: &kernel,
            initrd_size,
            command_line: &command_line,
            cpus: &cpus,
            spare_cpus: &[],
            chunks: &chunks,
            buses: &[],
            trampoline,
            tsc_khz: 1,
            channels_size: initrd_size.rotate_left(7),
            persistent: &[],
            is_confined: false,
            random_seed: &[],
        };
        let _ = lay_out(&odd);
        let _ = lay_out(&NodeDescription { trampoline: 0, cpus: &[0], command_line: "", ..odd });
    }
}

#[test]
fn one_chunk_is_enough() {
    let chunks = [
        LOW,
        Chunk {
            start: 4 * GIB,
            size: 128 * MIB,
        },
    ];
    let kernel = kernel(52 * MIB);
    let node = node(&kernel, &chunks);
    let layout = lay_out(&node).expect("fits");
    check(&layout, &node);
    assert_eq!(layout.kernel, 4 * GIB);
    assert_eq!(layout.initrd, 4 * GIB + 52 * MIB);
}

#[test]
fn reports_what_does_not_fit() {
    let chunks = [
        LOW,
        Chunk {
            start: 64 * MIB,
            size: 32 * MIB,
        },
    ];
    let large = kernel(52 * MIB);
    assert_eq!(
        lay_out(&node(&large, &chunks)).unwrap_err().to_string(),
        "the kernel needs 52 MiB of contiguous memory, the largest usable chunk has 32 MiB; request a larger --memory"
    );
    let small = kernel(20 * MIB);
    let node = NodeDescription {
        initrd_size: 15 * MIB,
        ..node(&small, &chunks)
    };
    assert_eq!(
        lay_out(&node).unwrap_err().to_string(),
        "the initrd needs 15 MiB of contiguous memory, beside the kernel the largest chunk has 12 MiB; request a larger --memory"
    );
}

#[test]
fn memory_below_the_kernels_minimum_is_not_used_for_it() {
    let chunks = [
        LOW,
        Chunk {
            start: 2 * MIB,
            size: 40 * MIB,
        },
    ];
    let kernel = kernel(20 * MIB);
    let node = node(&kernel, &chunks);
    let layout = lay_out(&node).expect("fits");
    check(&layout, &node);
    assert_eq!(layout.kernel, KERNEL_MIN);
}
