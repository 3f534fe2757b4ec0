//! The node's PCI buses: their configuration space (MCFG) and host bridges.
//!
//! A node gets a function that is alone on its bus, below a port of the base. The port is hidden:
//! to the node, each such bus is a root bus behind a host bridge of its own. Linux accepts an MCFG
//! only if a "motherboard resources" device reserves the same addresses (`is_acpi_reserved()` in
//! arch/x86/pci/mmconfig-shared.c). There is no `_PRT`, since no interrupt pin of a device is
//! connected to a node, only MSIs; and no `_OSC`, which leaves hot-plug, error reporting and power
//! management to the base.
//!
//! A confined node has its configuration space by I/O ports, and no MCFG.
//!
//! Source: PCI Firmware Specification 3.3, sections 4.1 "MCFG" and 4.5; ACPI specification 6.5,
//! section 6.5.5 "_BBN".

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID};
use crate::chunk::Chunk;
use crate::pci::PciBus;
use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, Device, EISAName, Name, ResourceTemplate, Scope,
};
use acpi_tables::mcfg::MCFG;

/// Addresses of the buses' configuration space.
pub(super) fn mcfg(buses: &[PciBus]) -> MCFG {
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    for bus in buses {
        if let Some(ecam) = bus.ecam() {
            mcfg.add_ecam(ecam, bus.segment, bus.number, bus.number);
        }
    }
    mcfg
}

/// Whether the node has configuration space in memory.
pub(super) fn has_mcfg(buses: &[PciBus]) -> bool {
    buses.iter().any(|bus| bus.ecam().is_some())
}

/// Appends a host bridge for each bus, and the device that reserves their configuration space.
pub(super) fn add_host_bridges(code: &mut Vec<u8>, buses: &[PciBus]) {
    for (index, bus) in (0_u8..).zip(buses) {
        add_host_bridge(code, index, bus);
    }
    if has_mcfg(buses) {
        add_reservation(code, buses);
    }
}

fn add_host_bridge(code: &mut Vec<u8>, index: u8, bus: &PciBus) {
    let hardware_id = EISAName::new("PNP0A08");
    let compatible_id = EISAName::new("PNP0A03");
    let number = AddressSpace::new_bus_number(u16::from(bus.number), u16::from(bus.number));
    let windows: Vec<_> = bus.windows.iter().map(memory).collect();
    let ports = bus
        .ports
        .iter()
        .map(|ports| AddressSpace::new_io(*ports.start(), *ports.end(), None));
    let ports: Vec<_> = ports.collect();
    let mut resources: Vec<&dyn Aml> = vec![&number];
    resources.extend(windows.iter().map(|window| window as &dyn Aml));
    resources.extend(ports.iter().map(|ports| ports as &dyn Aml));
    let resources = ResourceTemplate::new(resources);
    let names = [
        Name::new("_HID".into(), &hardware_id),
        Name::new("_CID".into(), &compatible_id),
        Name::new("_UID".into(), &index),
        Name::new("_SEG".into(), &bus.segment),
        Name::new("_BBN".into(), &bus.number),
        Name::new("_CRS".into(), &resources),
    ];
    let names = names.iter().map(|name| name as &dyn Aml).collect();
    let bridge = Device::new(format!("PC{index:02X}").as_str().into(), names);
    Scope::new("_SB_".into(), vec![&bridge]).to_aml_bytes(code);
}

fn add_reservation(code: &mut Vec<u8>, buses: &[PciBus]) {
    let hardware_id = EISAName::new("PNP0C02");
    let spaces = buses.iter().filter_map(PciBus::configuration_space);
    let spaces: Vec<_> = spaces.map(|space| memory(&space)).collect();
    let resources = ResourceTemplate::new(spaces.iter().map(|space| space as &dyn Aml).collect());
    let hardware_id = Name::new("_HID".into(), &hardware_id);
    let resources = Name::new("_CRS".into(), &resources);
    let device = Device::new("ECAM".into(), vec![&hardware_id, &resources]);
    Scope::new("_SB_".into(), vec![&device]).to_aml_bytes(code);
}

/// An uncached MMIO window. Linux places prefetchable BARs there as well.
fn memory(window: &Chunk) -> AddressSpace<u64> {
    let last = window.end() - 1;
    AddressSpace::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        window.start,
        last,
        None,
    )
}
