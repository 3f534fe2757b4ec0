//! DSDT: power-off, power button, channels, PCI buses, persistent memory.
//!
//! A machine without the fixed ACPI registers has its button behind a "generic event device": an
//! interrupt, and a method that notifies the device.
//!
//! Source: ACPI specification 6.5, sections 7.4.2.6 "\_S5", 4.8.3.1.1.2 "Control Method Power
//! Button" and 5.6.9 "Interrupt-signaled ACPI events".

use super::{Description, OEM_ID, OEM_REVISION, OEM_TABLE_ID, nfit, pci};
use crate::chunk::Chunk;
use crate::power_button;
use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, Interrupt, Method, Name, Notify,
    Package, Path, ResourceTemplate, Scope,
};
use acpi_tables::sdt::Sdt;

/// Size of the table header in bytes.
const HEADER_SIZE: u32 = 36;
/// From revision 2 on AML integers have 64 bits.
const REVISION: u8 = 2;
/// Sleep type of "soft off". The value written to the sleep control register is never zero, since
/// it includes the enable bit.
const SOFT_OFF: u8 = 5;
/// Notification that the button was pressed.
const PRESSED: u8 = 0x80;

/// Hardware id of the device with the memory of the node's channels
/// (`abi/include/insula_channel.h`).
const CHANNELS: &str = "INSU0001";

/// The table.
pub(super) fn table(description: &Description) -> Sdt {
    let sleep_types = Package::new(vec![&SOFT_OFF, &SOFT_OFF]);
    let mut code = Vec::new();
    Name::new("_S5_".into(), &sleep_types).to_aml_bytes(&mut code);
    add_power_button(&mut code);
    if description.channels.size > 0 {
        add_channels(&mut code, &description.channels);
    }
    pci::add_host_bridges(&mut code, description.buses);
    nfit::add_root(&mut code, description.persistent);
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

/// Appends the button and its event device.
fn add_power_button(code: &mut Vec<u8>) {
    let button_id = EISAName::new("PNP0C0C");
    let button_name = Name::new("_HID".into(), &button_id);
    let button = Device::new("PWRB".into(), vec![&button_name]);

    let events_name = Name::new("_HID".into(), &"ACPI0013");
    let edge = Interrupt::new(true, true, false, false, power_button::INPUT);
    let resources = ResourceTemplate::new(vec![&edge]);
    let events_resources = Name::new("_CRS".into(), &resources);
    let target = Path::new("PWRB");
    let press = Notify::new(&target, &PRESSED);
    let event = Method::new("_EVT".into(), 1, true, vec![&press]);
    let events = Device::new("EVTS".into(), vec![&events_name, &events_resources, &event]);
    Scope::new("_SB_".into(), vec![&button, &events]).to_aml_bytes(code);
}

/// Appends the device of the node's channels.
fn add_channels(code: &mut Vec<u8>, area: &Chunk) {
    let name = Name::new("_HID".into(), &CHANNELS);
    let cacheable = AddressSpaceCacheable::Cacheable;
    let memory = AddressSpace::new_memory(cacheable, true, area.start, area.end() - 1, None);
    let resources = ResourceTemplate::new(vec![&memory]);
    let resources = Name::new("_CRS".into(), &resources);
    let device = Device::new("CHAN".into(), vec![&name, &resources]);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(code);
}
