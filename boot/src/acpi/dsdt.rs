//! DSDT: power-off, power button, generation, channels, PCI buses, persistent memory.
//!
//! A machine without the fixed ACPI registers has its button behind a "generic event device": an
//! interrupt, and a method that notifies the device. The generation has the same one: see
//! [`generation`](crate::generation).
//!
//! Source: ACPI specification 6.5, sections 7.4.2.6 "\_S5", 4.8.3.1.1.2 "Control Method Power
//! Button" and 5.6.9 "Interrupt-signaled ACPI events".

use super::{Description, OEM_ID, OEM_REVISION, OEM_TABLE_ID, nfit, pci};
use crate::chunk::Chunk;
use crate::{generation, power_button};
use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, Else, Field, FieldAccessType,
    FieldEntry, FieldLockRule, FieldUpdateRule, If, Interrupt, Method, Name, Notify, OpRegion,
    OpRegionSpace, Package, Path, ResourceTemplate, Scope, Store,
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

/// Notification that the generation has changed.
const RENEWED: u8 = 0x80;
/// Hardware id of the device with the generation, and the ids by which drivers know it: that of the
/// specification, and one that is short enough for ACPI.
const GENERATION: &str = "INSU0002";
const GENERATION_IDS: [&str; 2] = ["VM_Gen_Counter", "VMGENCTR"];

/// Hardware id of the device with the memory of the node's channels
/// (`abi/include/insula_channel.h`).
const CHANNELS: &str = "INSU0001";

/// The table.
pub(super) fn table(description: &Description) -> Sdt {
    let sleep_types = Package::new(vec![&SOFT_OFF, &SOFT_OFF]);
    let mut code = Vec::new();
    Name::new("_S5_".into(), &sleep_types).to_aml_bytes(&mut code);
    add_power_button(&mut code);
    add_generation(&mut code, description.generation);
    add_events(&mut code, description.generation);
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

/// Appends the button.
fn add_power_button(code: &mut Vec<u8>) {
    let id = EISAName::new("PNP0C0C");
    let id = Name::new("_HID".into(), &id);
    let button = Device::new("PWRB".into(), vec![&id]);
    Scope::new("_SB_".into(), vec![&button]).to_aml_bytes(code);
}

/// Appends the generation at an address.
fn add_generation(code: &mut Vec<u8>, address: u64) {
    let [first, second] = GENERATION_IDS;
    let id = Name::new("_HID".into(), &GENERATION);
    let ids = Package::new(vec![&first, &second]);
    let ids = Name::new("_CID".into(), &ids);
    let kind = Name::new("_DDN".into(), &first);
    let (low, high) = (address as u32, (address >> 32) as u32);
    let place = Package::new(vec![&low, &high]);
    let place = Name::new("ADDR".into(), &place);
    let device = Device::new("VGEN".into(), vec![&id, &ids, &kind, &place]);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(code);
}

/// Appends the event device: its interrupt notifies the generation if that has changed, else the button.
fn add_events(code: &mut Vec<u8>, generation: u64) {
    let id = Name::new("_HID".into(), &"ACPI0013");
    let edge = Interrupt::new(true, true, false, false, power_button::INPUT);
    let resources = ResourceTemplate::new(vec![&edge]);
    let resources = Name::new("_CRS".into(), &resources);

    let (address, size) = (generation + generation::CHANGED, 1_u8);
    let space = OpRegionSpace::SystemMemory;
    let region = OpRegion::new("CHGD".into(), space, &address, &size);
    let (access, lock) = (FieldAccessType::Byte, FieldLockRule::NoLock);
    let fields = vec![FieldEntry::Named(*b"CHNG", 8)];
    let field = Field::new(
        "CHGD".into(),
        access,
        lock,
        FieldUpdateRule::Preserve,
        fields,
    );

    let (button, generation) = (Path::new("PWRB"), Path::new("VGEN"));
    let (changed, no) = (Path::new("CHNG"), 0_u8);
    let clear = Store::new(&changed, &no);
    let renew = Notify::new(&generation, &RENEWED);
    let press = Notify::new(&button, &PRESSED);
    let if_changed = If::new(&changed, vec![&clear, &renew]);
    let otherwise = Else::new(vec![&press]);
    let event = Method::new("_EVT".into(), 1, true, vec![&if_changed, &otherwise]);
    let events = Device::new(
        "EVTS".into(),
        vec![&id, &resources, &region, &field, &event],
    );
    Scope::new("_SB_".into(), vec![&events]).to_aml_bytes(code);
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
