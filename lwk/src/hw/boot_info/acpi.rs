//! Reads what the kernel needs from ACPI tables. There is no AML interpreter: the one value in AML,
//! the resource of the device `INSU0001`, is found by its bytes, because the base writes only one
//! kind of resource there.
//!
//! Source: ACPI specification 6.5, sections 5.2.5 to 5.2.12 and 6.4.3.5.1.

use alloc::vec::Vec;

use crate::hw::boot_info::bytes::{BadAddress, Reader, u32_in, u64_in};
use crate::hw::boot_info::error::BootInfoError;
use crate::hw::boot_info::memory_map::MemoryRange;

/// Offset of the data register in the page of the emulated I/O APIC.
pub(super) const IO_APIC_WINDOW: u64 = 0x10;

const HEADER: usize = 36;
const RSDP_XSDT: u64 = 24;
const TABLE_LENGTH: u64 = 4;
const TABLES_MAX: usize = 64;

const FADT_RESET: usize = 116 + 4;
const FADT_RESET_VALUE: usize = 128;
const FADT_DSDT: usize = 140;
const FADT_SLEEP_CONTROL: usize = 244 + 4;
/// "Sleep enable", and sleep type 5: soft off.
const SLEEP: u8 = 1 << 5 | 5 << 2;

const MADT_ENTRIES: usize = 44;
const LOCAL_APIC: u8 = 0;
const IO_APIC: u8 = 1;
const LOCAL_X2APIC: u8 = 9;
const ENABLED: u32 = 1;

const MCFG_ENTRIES: usize = 44;
const MCFG_ENTRY: usize = 16;
/// Bytes of configuration space of a bus.
const BUS_SIZE: u64 = 1 << 20;

const CHANNELS: &[u8] = b"INSU0001\0";
/// "QWord address space descriptor" of 43 bytes, a memory range.
const MEMORY_RESOURCE: [u8; 4] = [0x8a, 43, 0, 0];
const RESOURCE_START: usize = 14;
const RESOURCE_SIZE: usize = 38;

/// One-byte register in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// Its physical address.
    pub address: u64,
    /// Value to write.
    pub value: u8,
}

/// A PCI bus whose configuration space is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciBus {
    /// Segment group.
    pub segment: u16,
    /// Its number.
    pub number: u8,
    /// Its configuration space.
    pub config: MemoryRange,
}

/// Contents of the tables.
pub(super) struct Tables {
    /// Local APIC ids of the enabled processors, in table order.
    pub(super) processors: Vec<u32>,
    pub(super) io_apic: u64,
    pub(super) power_off: Register,
    pub(super) reset: Register,
    pub(super) shared_memory: Option<MemoryRange>,
    pub(super) buses: Vec<PciBus>,
}

impl Tables {
    pub(super) fn read(reader: &Reader, rsdp: u64) -> Result<Self, BootInfoError> {
        let xsdt = table(reader, reader.u64(rsdp + RSDP_XSDT)?)?;
        let (mut fadt, mut madt, mut mcfg) = (None, None, None);
        let addresses = xsdt.get(HEADER..).unwrap_or_default().chunks_exact(8);
        for address in addresses.take(TABLES_MAX) {
            let table = table(reader, u64_in(address, 0))?;
            match table.get(..4) {
                Some(b"FACP") => fadt = Some(table),
                Some(b"APIC") => madt = Some(table),
                Some(b"MCFG") => mcfg = Some(table),
                _ => {}
            }
        }
        let fadt = fadt.ok_or(BootInfoError::Missing("a FADT"))?;
        let madt = madt.ok_or(BootInfoError::Missing("a MADT"))?;
        let dsdt = table(reader, u64_in(&fadt, FADT_DSDT))?;
        let (processors, io_apic) = processors(&madt);
        Ok(Self {
            processors,
            io_apic,
            power_off: Register {
                address: u64_in(&fadt, FADT_SLEEP_CONTROL),
                value: SLEEP,
            },
            reset: Register {
                address: u64_in(&fadt, FADT_RESET),
                value: fadt.get(FADT_RESET_VALUE).copied().unwrap_or(1),
            },
            shared_memory: shared_memory(&dsdt),
            buses: mcfg.map_or_else(Vec::new, |mcfg| buses(&mcfg)),
        })
    }
}

fn table(reader: &Reader, address: u64) -> Result<Vec<u8>, BadAddress> {
    let length = reader.u32(address + TABLE_LENGTH)?;
    reader.bytes(address, length as usize)
}

/// Returns the processors, and the I/O APIC's address.
fn processors(madt: &[u8]) -> (Vec<u32>, u64) {
    let (mut processors, mut io_apic) = (Vec::new(), 0);
    let mut rest = madt.get(MADT_ENTRIES..).unwrap_or_default();
    while let [kind, length @ 2..=u8::MAX, ..] = *rest {
        let Some((entry, next)) = rest.split_at_checked(length.into()) else {
            break;
        };
        rest = next;
        match kind {
            LOCAL_APIC if u32_in(entry, 4) & ENABLED != 0 => {
                processors.push(u32::from(entry.get(3).copied().unwrap_or_default()));
            }
            LOCAL_X2APIC if u32_in(entry, 8) & ENABLED != 0 => processors.push(u32_in(entry, 4)),
            IO_APIC => io_apic = u32_in(entry, 4).into(),
            _ => {}
        }
    }
    (processors, io_apic)
}

/// Returns the PCI buses of the MCFG (PCI Firmware Specification 3.3, section 4.1.2).
fn buses(mcfg: &[u8]) -> Vec<PciBus> {
    let mut found = Vec::new();
    let entries = mcfg.get(MCFG_ENTRIES..).unwrap_or_default();
    for entry in entries.chunks_exact(MCFG_ENTRY) {
        let [low, high, first, last] = [entry[8], entry[9], entry[10], entry[11]];
        found.extend((first..=last).map(|number| PciBus {
            segment: u16::from_le_bytes([low, high]),
            number,
            config: MemoryRange {
                start: u64_in(entry, 0).wrapping_add(u64::from(number) * BUS_SIZE),
                size: BUS_SIZE,
            },
        }));
    }
    found
}

/// Returns the memory of the device of the node's channels.
fn shared_memory(dsdt: &[u8]) -> Option<MemoryRange> {
    let find = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).position(|at| at == part);
    let device = dsdt.get(find(dsdt, CHANNELS)?..)?;
    let resource = device.get(find(device, &MEMORY_RESOURCE)?..)?;
    Some(MemoryRange {
        start: u64_in(resource, RESOURCE_START),
        size: u64_in(resource, RESOURCE_SIZE),
    })
}
