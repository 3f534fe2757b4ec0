//! Persistent memory (NFIT), and the device by which Linux finds it.
//!
//! An e820 type of its own would do as well, but a Linux without PCI ignores that
//! (`e820__reserve_resources_late()` in arch/x86/kernel/e820.c is only called when PCI resources
//! are surveyed).
//!
//! Source: ACPI specification 6.5, sections 5.2.25 "NFIT" and 9.19 "NVDIMM Devices".

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use crate::chunk::Chunk;
use acpi_tables::Aml;
use acpi_tables::aml::{Device, Name, Scope};
use acpi_tables::sdt::Sdt;

/// Size of the table header in bytes.
const HEADER_SIZE: u32 = 36;
const REVISION: u8 = 1;
/// Type and size of a "System Physical Address Range Structure" without optional fields.
const RANGE: u16 = 0;
const RANGE_SIZE: u16 = 56;
/// 66F0D379-B4F3-4074-AC43-0D3318B78CDB: byte-addressable persistent memory, as bytes.
const PERSISTENT_MEMORY: [u8; 16] = [
    0x79, 0xd3, 0xf0, 0x66, 0xf3, 0xb4, 0x74, 0x40, 0xac, 0x43, 0x0d, 0x33, 0x18, 0xb7, 0x8c, 0xdb,
];
/// `EFI_MEMORY_WB` and `EFI_MEMORY_NV`.
const ATTRIBUTES: u64 = 1 << 3 | 1 << 15;

/// The table of these ranges, ascending.
pub(super) fn table(persistent: &[Chunk]) -> Sdt {
    let mut nfit = Sdt::new(
        *b"NFIT",
        HEADER_SIZE,
        REVISION,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    nfit.append_slice(&[0; 4]);
    for (index, chunk) in (1_u16..).zip(persistent) {
        nfit.append_slice(&RANGE.to_le_bytes());
        nfit.append_slice(&RANGE_SIZE.to_le_bytes());
        nfit.append_slice(&index.to_le_bytes());
        // Flags, reserved, proximity domain (not given).
        nfit.append_slice(&[0; 10]);
        nfit.append_slice(&PERSISTENT_MEMORY);
        nfit.append_slice(&chunk.start.to_le_bytes());
        nfit.append_slice(&chunk.size.to_le_bytes());
        nfit.append_slice(&ATTRIBUTES.to_le_bytes());
    }
    nfit
}

/// Appends the NVDIMM root device if there is persistent memory.
pub(super) fn add_root(code: &mut Vec<u8>, persistent: &[Chunk]) {
    if persistent.is_empty() {
        return;
    }
    let name = Name::new("_HID".into(), &"ACPI0012");
    let root = Device::new("NVDR".into(), vec![&name]);
    Scope::new("_SB_".into(), vec![&root]).to_aml_bytes(code);
}
