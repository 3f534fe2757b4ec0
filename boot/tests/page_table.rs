//! The page table, walked as by a processor.

mod support;

use insula_boot::{Chunk, Layout, NodeDescription, lay_out};
use proptest::prelude::*;
use std::collections::BTreeSet;
use support::{GIB, LOW, MIB, PAGE, kernel, node, piece_at, read_u64};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Translation of `address`, by a walk as in Intel SDM volume 3, section 4.5.
fn translate(layout: &Layout, address: u64) -> Option<u64> {
    let mut table = layout.page_table;
    for level in (1..=4).rev() {
        let shift = 12 + 9 * (level - 1);
        let entry = read_u64(layout, table + (address >> shift) % 512 * 8);
        if entry & PRESENT == 0 {
            return None;
        }
        assert_eq!(entry & WRITABLE, WRITABLE);
        assert_eq!(
            entry & !(ADDRESS | PRESENT | WRITABLE | LARGE),
            0,
            "stray bits in {entry:#x}"
        );
        if level == 1 || entry & LARGE != 0 {
            assert!(level <= 2, "only 4 KiB and 2 MiB pages");
            let inside = address & ((1 << shift) - 1);
            assert_eq!(
                entry & ADDRESS & ((1 << shift) - 1),
                0,
                "misaligned page {entry:#x}"
            );
            return Some((entry & ADDRESS) + inside);
        }
        table = entry & ADDRESS;
    }
    None
}

/// All mapped ranges, ascending.
fn mapped(layout: &Layout) -> Vec<Chunk> {
    let tables = piece_at(layout, layout.page_table);
    let entry = |table: u64, index: u64| {
        let at = (table - layout.page_table + index * 8) as usize;
        u64::from_le_bytes(tables[at..at + 8].try_into().expect("8 bytes"))
    };
    let mut found = Vec::new();
    let mut open = vec![(layout.page_table, 4u32, 0u64)];
    while let Some((table, level, start)) = open.pop() {
        let size = 1u64 << (12 + 9 * (level - 1));
        for index in 0..512 {
            let value = entry(table, index);
            let start = start + index * size;
            if value & PRESENT == 0 {
                continue;
            }
            if level == 1 || value & LARGE != 0 {
                assert_eq!(value & ADDRESS, start, "not one to one");
                found.push(Chunk { start, size });
            } else {
                open.push((value & ADDRESS, level - 1, start));
            }
        }
    }
    found.sort();
    found
}

/// The 4 KiB pages of `chunks`.
fn pages(chunks: &[Chunk]) -> BTreeSet<u64> {
    let each = |chunk: &Chunk| (chunk.start..chunk.end()).step_by(PAGE as usize);
    chunks.iter().flat_map(each).collect()
}

/// Maps exactly the chunks, the trampoline and page 0.
fn check(layout: &Layout, node: &NodeDescription) {
    let mut expected = pages(node.chunks);
    expected.extend([0, node.trampoline]);
    assert!(
        pages(&mapped(layout)) == expected,
        "maps more or less than it should"
    );
}

#[test]
fn maps_all_that_the_start_needs() {
    let chunks = [
        LOW,
        Chunk {
            start: 5 * GIB,
            size: 128 * MIB,
        },
    ];
    let kernel = kernel(52 * MIB);
    let node = node(&kernel, &chunks);
    let layout = lay_out(&node).expect("fits");
    for address in [
        layout.entry,
        layout.kernel + kernel.footprint - 1,
        layout.initrd,
        layout.argument,
        layout.page_table,
        layout.power_off,
        node.trampoline + 0x123,
        0x413,
        LOW.start,
        LOW.end() - 1,
    ] {
        assert_eq!(translate(&layout, address), Some(address), "{address:#x}");
    }
    for address in [
        PAGE,
        LOW.start - 1,
        LOW.end(),
        MIB,
        0xfee0_0000,
        5 * GIB - 1,
        5 * GIB + 128 * MIB,
    ] {
        assert_eq!(translate(&layout, address), None, "{address:#x}");
    }
    check(&layout, &node);
}

/// The number of large pages and of all pages mapped above 1 MiB for a chunk with these bounds.
fn pages_for(start: u64, end: u64) -> (usize, usize) {
    let size = end - start;
    let chunks = [LOW, Chunk { start, size }];
    let kernel = kernel(20 * MIB);
    let layout = lay_out(&node(&kernel, &chunks)).expect("fits");
    let above: Vec<_> = mapped(&layout)
        .into_iter()
        .filter(|page| page.start > MIB)
        .collect();
    let large = above.iter().filter(|page| page.size == 2 * MIB).count();
    (large, above.len())
}

#[test]
fn large_pages_where_they_fit() {
    assert_eq!(pages_for(64 * MIB, 128 * MIB), (32, 32));
    assert_eq!(
        pages_for(64 * MIB - 3 * PAGE, 128 * MIB + 5 * PAGE),
        (32, 32 + 3 + 5)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn maps_the_node_and_nothing_else(
        edges in prop::collection::btree_set(256u64..600_000, 2..10),
        trampoline in 0u64..256,
        home in 2u64..70_000,
    ) {
        // Random ranges of pages below 2.3 GiB, and above them one that is large enough for
        // everything.
        let edges: Vec<u64> = edges.into_iter().collect();
        let mut chunks: Vec<Chunk> = edges
            .chunks_exact(2)
            .map(|edge| Chunk { start: edge[0] * PAGE, size: (edge[1] - edge[0]).min(5000) * PAGE })
            .collect();
        chunks.extend([LOW, Chunk { start: home * GIB / 2 + 4 * GIB, size: 64 * MIB }]);
        let kernel = kernel(20 * MIB);
        let node = NodeDescription { trampoline: trampoline * PAGE, ..node(&kernel, &chunks) };
        let layout = lay_out(&node).expect("fits");
        check(&layout, &node);
    }
}
