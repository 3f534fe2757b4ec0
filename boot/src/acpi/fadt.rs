//! FADT: what kind of platform this is, and the registers that end it.
//!
//! Source: ACPI specification 6.5, section 5.2.9; for the sleep registers 4.8.3.7, for the reset register 4.8.3.6.

use super::{Description, OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use acpi_tables::fadt::{FADT, FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};

/// IAPC_BOOT_ARCH: "VGA Not Present". With bits 0 and 1 clear there are no legacy devices and no 8042 either.
const BOOT_NO_VGA: u16 = 1 << 2;
/// IAPC_BOOT_ARCH: "CMOS RTC Not Present".
const BOOT_NO_CMOS_RTC: u16 = 1 << 5;
/// What the kernel writes to the reset register.
const RESET_VALUE: u8 = 1;

/// What the platform is.
const FLAGS: [Flags; 6] = [
    // None of ACPI's fixed hardware: no PM timer, no SCI, no legacy interrupt controller, no PIT.
    Flags::HwReducedAcpi,
    // Else Linux would use the APICs' logical flat mode, in which the base's interrupts reach the node as well.
    Flags::ForceApicPhysicalDestinationMode,
    Flags::ResetRegSup,
    // The power button is not fixed hardware, and there is no sleep button.
    Flags::PwrButton,
    Flags::SlpButton,
    // The specification wants it set on this architecture.
    Flags::Wbinvd,
];

/// The table, with the DSDT at `dsdt`.
///
/// Sleep control and sleep status are *one* byte. To power off, ACPICA clears "wake status" by writing 0x80 to the
/// status register, then writes the sleep type to the control register, and then waits for wake status to be set
/// (`acpi_hw_extended_sleep()` in drivers/acpi/acpica/hwesleep.c). In plain memory of its own, status would keep
/// the 0x80; the wait would end at once, and Linux would go on after its own power-off: to the panic "Attempted to
/// kill init". With one byte, the control value overwrites the 0x80, and the core waits until it is stopped.
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

/// A register that is a byte of memory.
fn byte_at(address: u64) -> GAS {
    GAS::new(
        AddressSpace::SystemMemory,
        8,
        0,
        AccessSize::ByteAccess,
        address,
    )
}
