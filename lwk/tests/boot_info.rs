//! The kernel reads what `boot/` lays out for any node.

use std::collections::BTreeMap;

use insula_boot::{Chunk, Configuration, NodeDescription, PciBus, lay_out};
use insula_lwk::hw::boot_info::BootInfo;
use insula_lwk::hw::boot_info::bytes::Reader;
use insula_lwk::hw::boot_info::memory_map::MemoryRange;
use kimage::{Format, Loadable};

const MIB: u64 = 1 << 20;

/// An ELF kernel's header as kimage makes it: `boot/` needs its magic number and a limit.
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

fn boot_info(
    cpus: &[u32],
    spare_cpus: &[u32],
    chunks: &[Chunk],
    buses: &[PciBus],
) -> (insula_boot::Layout, BootInfo) {
    let layout = lay_out(&NodeDescription {
        kernel: &kernel(),
        initrd_size: 0,
        command_line: "quiet",
        cpus,
        spare_cpus,
        chunks,
        buses,
        trampoline: 0x98000,
        tsc_khz: 2_400_000,
        channels_size: 0x9000,
        persistent: &[],
        is_confined: false,
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
    let boot_info = BootInfo::read(&Reader::new(&copy), layout.argument).unwrap();
    (layout, boot_info)
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
    let (layout, boot_info) = boot_info(&[5, 3], &[7], &[LOW, high], &[]);
    assert_eq!(boot_info.buses, []);
    assert_eq!(boot_info.cores, [5, 3], "neither the phantom nor the spare");
    assert_eq!(boot_info.command_line.tsc_khz(), Some(2_400_000));
    assert_eq!(boot_info.power_off.address, layout.power_off);
    assert_ne!(boot_info.power_off.value, 0);
    assert_eq!(boot_info.reset.address, layout.reset);
    assert_ne!(boot_info.reset.value, 0);
    assert_eq!(boot_info.power_button, layout.power_button);
    let shared = MemoryRange {
        start: layout.channels,
        size: 0x9000,
    };
    assert_eq!(boot_info.shared_memory, Some(shared));
    let all: u64 = boot_info
        .memory
        .iter()
        .chain(&boot_info.reserved)
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
    let (layout, boot_info) = boot_info(&[1], &[], &chunks, &[]);
    assert!(layout.e820.len() > 128);
    assert_eq!(
        boot_info.memory.len() + boot_info.reserved.len(),
        layout.e820.len()
    );
}

#[test]
fn large_apic_ids_are_read() {
    let high = Chunk {
        start: 1 << 30,
        size: 64 * MIB,
    };
    let (_, boot_info) = boot_info(&[300, 4], &[], &[LOW, high], &[]);
    assert_eq!(boot_info.cores, [300, 4]);
}

#[test]
fn configuration_space_of_its_buses_is_found() {
    let high = Chunk {
        start: 1 << 30,
        size: 64 * MIB,
    };
    let bus = |segment, number| PciBus {
        segment,
        number,
        configuration: Configuration::Memory { ecam: 0xb000_0000 },
        windows: &[],
        ports: &[],
    };
    let (_, boot_info) = boot_info(&[1], &[], &[LOW, high], &[bus(0, 2), bus(3, 0xff)]);
    let found: Vec<_> = boot_info
        .buses
        .iter()
        .map(|bus| (bus.segment, bus.number, bus.config.start, bus.config.size))
        .collect();
    let expected = [(0, 2, 0xb020_0000, MIB), (3, 0xff, 0xbff0_0000, MIB)];
    assert_eq!(found, expected);
}
