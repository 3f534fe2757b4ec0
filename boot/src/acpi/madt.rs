//! MADT: the node's processors and a fake I/O APIC.
//!
//! There is no interrupt source override and no NMI entry: no interrupt lines lead to a node, and
//! its kernel leaves the local APICs' pins masked.
//!
//! Source: ACPI specification 6.5, section 5.2.12.

use super::{Description, OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::madt::{EnabledStatus, IoApic, ProcessorLocalApic};
use acpi_tables::sdt::Sdt;
use acpi_tables::{Aml, AmlSink};

/// Offset of the entries in bytes.
const HEAD_SIZE: u32 = 44;
/// Offset of the local APIC address. The flags behind it stay 0: no 8259 controllers.
const LOCAL_APIC_ADDRESS: usize = 36;
const REVISION: u8 = 5;

/// Address of a core's local APIC after INIT.
const LOCAL_APIC: u32 = 0xfee0_0000;
/// Greatest id in a "Processor Local APIC" entry; 255 means broadcast in xAPIC mode.
const LOCAL_APIC_ID_MAX: u32 = 254;
/// Type and size in bytes of a "Processor Local x2APIC" entry (5.2.12.12).
const LOCAL_X2APIC: [u8; 2] = [9, 16];

/// The table. Each processor's ACPI UID is its APIC id, which is unique too.
pub(super) fn table(description: &Description) -> Sdt {
    let mut madt = Sdt::new(
        *b"APIC",
        HEAD_SIZE,
        REVISION,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    madt.write_u32(LOCAL_APIC_ADDRESS, LOCAL_APIC);
    let mut entries = Vec::new();
    for id in description.processors.listed() {
        add_processor(&mut entries, id);
    }
    // Its address is below 1 MiB.
    IoApic::new(0, description.io_apic as u32, 0).to_aml_bytes(&mut entries);
    madt.append_slice(&entries);
    madt
}

/// Appends the entry of an enabled processor.
fn add_processor(entries: &mut Vec<u8>, id: u32) {
    match u8::try_from(id) {
        Ok(short) if id <= LOCAL_APIC_ID_MAX => {
            ProcessorLocalApic::new(short, short, EnabledStatus::Enabled).to_aml_bytes(entries);
        }
        _ => {
            entries.vec(&LOCAL_X2APIC);
            entries.word(0);
            entries.dword(id);
            entries.dword(EnabledStatus::Enabled as u32);
            entries.dword(id);
        }
    }
}
