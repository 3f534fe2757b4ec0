//! FADT: type of the platform, and its power-off and reset registers.
//!
//! Source: ACPI specification 6.5, section 5.2.9; for the sleep registers 4.8.3.7, for the reset
//! register 4.8.3.6.

use super::{Description, OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::fadt::{FADT, FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};

/// IAPC_BOOT_ARCH: "VGA Not Present". Bits 0 and 1 are clear: no legacy devices, no 8042.
const BOOT_NO_VGA: u16 = 1 << 2;
/// IAPC_BOOT_ARCH: "CMOS RTC Not Present".
const BOOT_NO_CMOS_RTC: u16 = 1 << 5;
/// The value that resets.
const RESET_VALUE: u8 = 1;

/// Flags of the platform.
const FLAGS: [Flags; 6] = [
    // No fixed hardware: no PM timer, no SCI, no legacy interrupt controller, no PIT.
    Flags::HwReducedAcpi,
    // Otherwise Linux would use logical flat mode, in which the base's interrupts also reach the
    // node.
    Flags::ForceApicPhysicalDestinationMode,
    Flags::ResetRegSup,
    // The power button is not fixed hardware, and there is no sleep button.
    Flags::PwrButton,
    Flags::SlpButton,
    // Required by the specification on this architecture.
    Flags::Wbinvd,
];

/// The table with the DSDT at `dsdt`.
///
/// Sleep control and sleep status are *the same* byte. To power off, ACPICA clears "wake status" by
/// writing 0x80 to the status register, writes the sleep type to the control register, then waits
/// until wake status is set (`acpi_hw_extended_sleep()` in drivers/acpi/acpica/hwesleep.c). In
/// separate plain memory, status would keep the 0x80, the wait would end at once, and Linux would
/// continue after its power-off: to the panic "Attempted to kill init". With one byte, the control
/// value overwrites the 0x80, and the core waits until it is stopped.
pub(super) fn table(dsdt: u64, description: &Description) -> FADT {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION).dsdt_64(dsdt);
    for flag in FLAGS {
        fadt = fadt.flag(flag);
    }
    fadt.iapc_boot_arch = (BOOT_NO_VGA | BOOT_NO_CMOS_RTC).into();
    fadt.reset_reg = byte_at(description.reset);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = byte_at(description.power_off);
    fadt.sleep_status_reg = byte_at(description.power_off);
    fadt.finalize()
}

/// A one-byte register in memory.
fn byte_at(address: u64) -> GAS {
    GAS::new(
        AddressSpace::SystemMemory,
        8,
        0,
        AccessSize::ByteAccess,
        address,
    )
}
