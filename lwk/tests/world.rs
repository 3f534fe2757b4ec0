//! What `boot/` lays out for any node is what this kernel reads.

use std::collections::BTreeMap;

use insula_boot::{Chunk, NodeDescription, lay_out};
use insula_lwk::world::{Reader, Stretch, World};
use kimage::{Format, Loadable};

const MIB: u64 = 1 << 20;

/// An ELF kernel's header as kimage makes it, of which `boot/` wants the magic number and a limit.
fn kernel() -> Loadable {
    let mut page = vec![0; 0x26c];
    page[0x202..0x206].copy_from_slice(b"HdrS");
    page[0x238..0x23c].copy_from_slice(&2047_u32.to_le_bytes());
    Loadable {
        format: Format::Lwk,
        release: "lwk".into(),
        setup_header: page.split_off(0x1f1),
        entry_offset: 0,
        alignment: 2 * MIB,
        footprint: 4 * MIB,
        segments: Vec::new(),
    }
}

fn world(cpus: &[u32], spare_cpus: &[u32], chunks: &[Chunk]) -> (insula_boot::Layout, World) {
    let layout = lay_out(&NodeDescription {
        kernel: &kernel(),
        initrd_size: 0,
        command_line: "quiet",
        cpus,
        spare_cpus,
        chunks,
        buses: &[],
        trampoline: 0x98000,
        tsc_khz: 2_400_000,
        channels_size: 0x9000,
        persistent: &[],
        random_seed: &[],
    })
    .unwrap();
    let pieces: BTreeMap<u64, Vec<u8>> = layout
        .pieces
        .iter()
        .map(|piece| (piece.address, piece.bytes.clone()))
        .collect();
    let copy = |address: u64, to: &mut [u8]| {
        let Some((start, bytes)) = pieces.range(..=address).next_back() else {
            return false;
        };
        let skip = (address - start) as usize;
        let found = bytes.get(skip..).and_then(|rest| rest.get(..to.len()));
        found.map(|bytes| to.copy_from_slice(bytes)).is_some()
    };
    let world = World::read(&Reader::new(&copy), layout.argument).unwrap();
    (layout, world)
}

const LOW: Chunk = Chunk {
    start: 0x10000,
    size: 0x9000,
};

#[test]
fn the_kernel_reads_what_boot_lays_out() {
    let high = Chunk {
        start: 6 << 30,
        size: 256 * MIB,
    };
    let (layout, world) = world(&[5, 3], &[7], &[LOW, high]);
    assert_eq!(world.cores, [5, 3], "neither the phantom nor the spare");
    assert_eq!(world.command_line.tsc_khz(), Some(2_400_000));
    assert_eq!(world.power_off.address, layout.power_off);
    assert_ne!(world.power_off.value, 0);
    assert_eq!(world.reset.address, layout.reset);
    assert_ne!(world.reset.value, 0);
    assert_eq!(world.power_button, layout.power_button);
    let shared = Stretch {
        start: layout.channels,
        size: 0x9000,
    };
    assert_eq!(world.shared, Some(shared));
    let all: u64 = world
        .memory
        .iter()
        .chain(&world.reserved)
        .map(|one| one.size)
        .sum();
    assert_eq!(all, LOW.size + high.size);
}

#[test]
fn a_memory_map_longer_than_boot_params_is_read() {
    let high = |n: u64| Chunk {
        start: (1 << 30) + n * 16 * MIB,
        size: 8 * MIB,
    };
    let chunks: Vec<_> = [LOW].into_iter().chain((0..200).map(high)).collect();
    let (layout, world) = world(&[1], &[], &chunks);
    assert!(layout.e820.len() > 128);
    assert_eq!(world.memory.len() + world.reserved.len(), layout.e820.len());
}

#[test]
fn large_apic_ids_are_read() {
    let high = Chunk {
        start: 1 << 30,
        size: 64 * MIB,
    };
    let (_, world) = world(&[300, 4], &[], &[LOW, high]);
    assert_eq!(world.cores, [300, 4]);
}
