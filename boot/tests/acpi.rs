//! The ACPI tables: found as a kernel finds them, checksummed, and read by the reference
//! implementation.

mod support;

use insula_boot::generation::{NUMBER_SIZE, renewed};
use insula_boot::{
    Chunk, Configuration, E820Type, Layout, LayoutError, NodeDescription, PciBus, lay_out,
};
use kimage::{Format, Loadable};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use support::{GIB, LOW, MIB, PAGE, kernel, node, read, read_u32, read_u64};

const CHUNKS: [Chunk; 2] = [
    LOW,
    Chunk {
        start: 6 * GIB,
        size: 128 * MIB,
    },
];

/// A bus with an NVMe drive and one with a network card.
const BUSES: [PciBus; 2] = [
    PciBus {
        segment: 0,
        number: 1,
        configuration: Configuration::Memory { ecam: 0xb000_0000 },
        windows: &[Chunk {
            start: 0xfe80_0000,
            size: 0x4000,
        }],
        ports: &[],
    },
    PciBus {
        segment: 2,
        number: 0x21,
        configuration: Configuration::Memory {
            ecam: 0x40_0000_0000,
        },
        windows: &[
            Chunk {
                start: 0xfea0_0000,
                size: 0x1000,
            },
            Chunk {
                start: 0x70_0000_0000,
                size: 0x4000,
            },
        ],
        ports: &[0xc000..=0xc01f],
    },
];

fn ecam(bus: &PciBus) -> u64 {
    match bus.configuration {
        Configuration::Memory { ecam } => ecam,
        Configuration::Ports(_) => unreachable!(),
    }
}

fn laid_out(cpus: &[u32], spare_cpus: &[u32]) -> Layout {
    with_buses(cpus, spare_cpus, &[]).expect("fits")
}

/// A layout for the lightweight kernel, which supports all cores.
fn with_buses(cpus: &[u32], spare_cpus: &[u32], buses: &[PciBus]) -> Result<Layout, LayoutError> {
    let kernel = Loadable {
        format: Format::Lwk,
        ..kernel(52 * MIB)
    };
    let node = NodeDescription {
        cpus,
        spare_cpus,
        buses,
        ..node(&kernel, &CHUNKS)
    };
    lay_out(&node)
}

fn rsdp(layout: &Layout) -> u64 {
    read_u64(layout, layout.argument + 0x070)
}

fn table_at(layout: &Layout, address: u64) -> (String, Vec<u8>) {
    let size = read_u32(layout, address + 4) as usize;
    let bytes = read(layout, address, size);
    (
        String::from_utf8(bytes[..4].to_vec()).expect("a signature"),
        bytes,
    )
}

/// All tables reachable from the RSDP, by signature.
fn tables(layout: &Layout) -> BTreeMap<String, Vec<u8>> {
    let xsdt = table_at(layout, read_u64(layout, rsdp(layout) + 24));
    let entries = xsdt.1[36..].chunks_exact(8);
    let addresses = entries.map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
    let mut tables: BTreeMap<_, _> = addresses.map(|at| table_at(layout, at)).collect();
    let dsdt = u64_at(&tables["FACP"], 140);
    tables.extend([xsdt, table_at(layout, dsdt)]);
    tables
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("4 bytes"))
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

#[test]
fn sums_are_zero() {
    let layout = laid_out(&[1, 300], &[2]);
    let rsdp = read(&layout, rsdp(&layout), 36);
    assert_eq!((sum(&rsdp[..20]), sum(&rsdp)), (0, 0));
    let tables = tables(&layout);
    assert_eq!(
        tables.keys().collect::<Vec<_>>(),
        ["APIC", "DSDT", "FACP", "XSDT"]
    );
    for (signature, bytes) in tables {
        assert_eq!(sum(&bytes), 0, "{signature}");
    }
}

/// The processors that the MADT lists as enabled, in order.
fn listed(layout: &Layout) -> Vec<u32> {
    let madt = &tables(layout)["APIC"];
    let mut entries = &madt[44..];
    let mut ids = Vec::new();
    while let [kind, size, ..] = *entries {
        let (entry, rest) = entries.split_at(usize::from(size));
        match kind {
            0 => {
                assert_eq!((size, u32_at(entry, 4)), (8, 1));
                ids.push(u32::from(entry[3]));
            }
            9 => {
                assert_eq!((size, u32_at(entry, 8)), (16, 1));
                ids.push(u32_at(entry, 4));
            }
            1 => assert_eq!(
                (u64::from(u32_at(entry, 4)), u32_at(entry, 8)),
                (LOW.end() - 2 * PAGE, 0)
            ),
            other => panic!("unexpected entry of type {other}"),
        }
        entries = rest;
    }
    ids
}

#[test]
fn lists_the_phantom_then_the_nodes_processors() {
    assert_eq!(listed(&laid_out(&[3, 1], &[])), [240, 3, 1]);
    assert_eq!(
        listed(&laid_out(&[240, 254], &[255, 70_000])),
        [239, 240, 254, 255, 70_000]
    );
}

#[test]
fn flags_exclude_legacy_hardware() {
    let layout = laid_out(&[1], &[]);
    let fadt = &tables(&layout)["FACP"];
    assert_eq!(fadt[8], 6, "revision");
    let flags = u32_at(fadt, 112);
    for (bit, name) in [
        (10, "RESET_REG_SUP"),
        (19, "FORCE_APIC_PHYSICAL"),
        (20, "HW_REDUCED_ACPI"),
    ] {
        assert_ne!(flags & 1 << bit, 0, "{name}");
    }
    assert_eq!(
        fadt[109], 0b10_0100,
        "boot flags: no VGA, no CMOS RTC, no 8042, no legacy devices"
    );
}

#[test]
fn describes_exactly_the_nodes_buses() {
    let layout = with_buses(&[1], &[], &BUSES).expect("fits");
    let tables = tables(&layout);
    let mcfg = &tables["MCFG"];
    assert_eq!(sum(mcfg), 0);
    let entries: Vec<_> = mcfg[44..].chunks_exact(16).collect();
    assert_eq!(entries.len(), BUSES.len());
    for (entry, bus) in entries.iter().zip(&BUSES) {
        assert_eq!(u64_at(entry, 0), ecam(bus));
        let segment = bus.segment.to_le_bytes();
        assert_eq!(
            entry[8..12],
            [segment[0], segment[1], bus.number, bus.number]
        );
    }
    let dsdt = &tables["DSDT"];
    let has = |bytes: &[u8]| dsdt.windows(bytes.len()).any(|window| window == bytes);
    for bus in &BUSES {
        let space = ecam(bus) + (u64::from(bus.number) << 20);
        for window in bus.windows.iter().copied().chain([Chunk {
            start: space,
            size: MIB,
        }]) {
            let ends = [window.start.to_le_bytes(), (window.end() - 1).to_le_bytes()].concat();
            assert!(has(&ends), "{window:x?}");
        }
    }
    assert!(!tables_without_buses().contains_key("MCFG"));
}

fn tables_without_buses() -> BTreeMap<String, Vec<u8>> {
    tables(&laid_out(&[1], &[]))
}

#[test]
fn invalid_buses_are_refused() {
    let memory = &[Chunk {
        start: 6 * GIB,
        size: 0x1000,
    }];
    let odd = &[Chunk {
        start: 0xfe80_0010,
        size: 0x1000,
    }];
    let at_the_end = &[Chunk {
        start: u64::MAX - 0xfff,
        size: 0x1000,
    }];
    for windows in [memory, odd, at_the_end] {
        let bus = PciBus {
            windows,
            ..BUSES[0]
        };
        let bad = LayoutError::InvalidBus {
            segment: 0,
            number: 1,
        };
        assert_eq!(with_buses(&[1], &[], &[bus]).unwrap_err(), bad);
    }
    let twice = LayoutError::DuplicateBus {
        segment: 0,
        number: 1,
    };
    assert_eq!(
        with_buses(&[1], &[], &[BUSES[0], BUSES[0]]).unwrap_err(),
        twice
    );
}

#[test]
fn describes_persistent_memory() {
    let persistent = [Chunk {
        start: 20 * GIB,
        size: 4 * MIB,
    }];
    let tables = tables(&with_persistent(&persistent));
    let nfit = &tables["NFIT"];
    assert_eq!(nfit.len(), 40 + 56);
    assert_eq!(nfit[40..46], [0, 0, 56, 0, 1, 0], "type, length, index");
    assert_eq!((u64_at(nfit, 72), u64_at(nfit, 80)), (20 * GIB, 4 * MIB));
    let has_root = |dsdt: &[u8]| dsdt.windows(8).any(|bytes| bytes == b"ACPI0012");
    assert!(has_root(&tables["DSDT"]));
    let without = tables_without_buses();
    assert!(!without.contains_key("NFIT") && !has_root(&without["DSDT"]));
}

fn with_persistent(persistent: &[Chunk]) -> Layout {
    let kernel = kernel(52 * MIB);
    let node = NodeDescription {
        persistent,
        ..node(&kernel, &CHUNKS)
    };
    lay_out(&node).expect("fits")
}

/// Address of the one-byte register at `offset` of the FADT.
fn byte_register(fadt: &[u8], offset: usize) -> u64 {
    assert_eq!(fadt[offset..offset + 4], [0, 8, 0, 1]);
    u64_at(fadt, offset + 4)
}

#[test]
fn registers_are_the_power_off_and_reset_bytes() {
    let layout = laid_out(&[1], &[]);
    let fadt = &tables(&layout)["FACP"];
    assert_eq!(byte_register(fadt, 116), layout.reset);
    assert_ne!(fadt[128], 0, "reset value");
    assert_eq!(byte_register(fadt, 244), layout.power_off, "sleep control");
    assert_eq!(byte_register(fadt, 256), layout.power_off, "sleep status");
}

/// Linux reads the device's memory from a QWordMemory resource: type, range and length (ACPI 6.5,
/// 6.4.3.5.1).
#[test]
fn describes_the_channels() {
    let layout = laid_out(&[1], &[]);
    let dsdt = &tables(&layout)["DSDT"];
    let device = dsdt.windows(8).position(|bytes| bytes == b"INSU0001");
    let device = &dsdt[device.expect("the device")..];
    let resource = device
        .windows(4)
        .position(|bytes| bytes == [0x8a, 0x2b, 0, 0]);
    let resource = &device[resource.expect("its memory")..];
    let (size, from) = (5 * PAGE, layout.channels);
    assert_eq!(from % PAGE, 0);
    assert_eq!(u64_at(resource, 14), from);
    assert_eq!(u64_at(resource, 22), from + size - 1);
    assert_eq!(u64_at(resource, 38), size);
    assert!(is_reserved(&layout, from, size), "{:x?}", layout.e820);
}

fn is_reserved(layout: &Layout, from: u64, size: u64) -> bool {
    layout.e820.iter().any(|entry| {
        entry.kind == E820Type::Reserved
            && entry.start <= from
            && from + size <= entry.start + entry.size
    })
}

/// Linux' vmgenid knows the device by either id, and gets its address in two halves.
#[test]
fn describes_the_generation() {
    let layout = laid_out(&[1], &[]);
    let dsdt = &tables(&layout)["DSDT"];
    let device = dsdt.windows(8).position(|bytes| bytes == b"INSU0002");
    let device = &dsdt[device.expect("the device")..];
    let has = |bytes: &[u8]| device.windows(bytes.len()).any(|found| found == bytes);
    assert!(has(b"VM_Gen_Counter\0") && has(b"VMGENCTR\0"));
    let low = u32::try_from(layout.generation).expect("below 4 GiB");
    // Two elements: a double word, and zero.
    assert!(has(&[&[2, 0x0c], &low.to_le_bytes()[..], &[0]].concat()));
    assert_eq!(layout.generation % 8, 0);
    let size = renewed([0; NUMBER_SIZE]).len() as u64;
    assert!(is_reserved(&layout, layout.generation, size));
    for piece in &layout.pieces {
        let at = layout.generation.checked_sub(piece.address);
        let there = at.and_then(|at| piece.bytes.get(at as usize..at as usize + size as usize));
        assert!(
            there.is_none_or(|bytes| bytes.iter().all(|&byte| byte == 0)),
            "in use"
        );
    }
}

/// Runs iasl, if installed, and fails on its errors.
fn iasl(folder: &Path, arguments: &[&str]) -> bool {
    let output = match Command::new("iasl")
        .args(arguments)
        .current_dir(folder)
        .output()
    {
        Err(error) if error.kind() == ErrorKind::NotFound => return false,
        output => output.expect("iasl runs"),
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let complains = text.lines().any(|line| {
        let line = line.to_lowercase();
        let counts_none = line.contains(" 0 errors") && line.contains(" 0 warnings");
        !counts_none
            && ["error", "warning", "invalid", "could not", "unknown"]
                .iter()
                .any(|bad| line.contains(bad))
    });
    assert!(
        output.status.success() && !complains,
        "iasl {arguments:?} says:\n{text}"
    );
    true
}

/// `table` without checksum, creator and creator revision.
fn unsigned(table: &[u8]) -> [&[u8]; 3] {
    [&table[..9], &table[10..28], &table[36..]]
}

/// Disassembles and reassembles each table: the bytes must be the same. (iasl does not read an
/// RSDP.)
#[test]
fn reference_implementation_reads_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = with_buses(&[1, 300], &[2], &BUSES).expect("fits");
    for (signature, bytes) in tables(&layout) {
        let path = |suffix| folder.path().join(format!("{signature}.{suffix}"));
        std::fs::write(path("dat"), &bytes).expect("written");
        if !iasl(folder.path(), &["-d", &format!("{signature}.dat")]) {
            println!("skipped: no iasl here; install acpica-tools");
            return;
        }
        iasl(folder.path(), &[&format!("{signature}.dsl")]);
        let again = std::fs::read(path("aml")).expect("assembled");
        assert_eq!(unsigned(&again), unsigned(&bytes), "{signature}");
    }
}
