//! DSDT: that the node can be switched off, and nothing else.
//!
//! Source: ACPI specification 6.5, section 7.4.2.6 "\_S5".

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::Aml;
use acpi_tables::aml::{Name, Package};
use acpi_tables::sdt::Sdt;

/// Size of a table's header, in bytes.
const HEADER_SIZE: u32 = 36;
/// Since revision 2, integers of the table's code have 64 bits.
const REVISION: u8 = 2;
/// Sleep type of "soft off". Written to the sleep control register it is not zero, whatever its value, as the
/// enable bit goes with it.
const SOFT_OFF: u8 = 5;

/// The table.
pub(super) fn table() -> Sdt {
    let sleep_types = Package::new(vec![&SOFT_OFF, &SOFT_OFF]);
    let mut code = Vec::new();
    Name::new("_S5_".into(), &sleep_types).to_aml_bytes(&mut code);
    let mut dsdt = Sdt::new(
        *b"DSDT",
        HEADER_SIZE,
        REVISION,
        OEM_ID,
        OEM_TABLE_ID,
        OEM_REVISION,
    );
    dsdt.append_slice(&code);
    dsdt
}
