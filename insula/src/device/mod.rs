//! PCI functions for nodes: which can be given away, and what a node must be told of them.
//!
//! Everything is refused here, before anything is touched, with words for the user; the module checks once more what
//! its own safety depends on.

mod address;
mod ecam;
mod function;
mod select;
#[cfg(test)]
pub(crate) mod tests;
mod usage;

pub use address::{AddressError, PciAddress};
pub use select::{DeviceError, Selected, describe, explain, select};

use insula_abi as abi;
use serde::Serialize;

use crate::root::Root;
use function::Function;

/// Whether the machine's IOMMUs remap interrupts: then messages that a node makes up reach nobody. The names of
/// remapped interrupt chips begin so: drivers/iommu/intel and amd.
#[must_use]
pub fn interrupts_are_remapped(root: &Root) -> bool {
    root.text("/proc/interrupts")
        .is_ok_and(|text| text.contains(" IR-"))
}

/// A PCI function as users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceView {
    /// Its address.
    pub address: PciAddress,
    /// Class code, subclass and programming interface, in hexadecimal.
    pub class: String,
    /// What kind of device that is.
    pub kind: &'static str,
    /// Vendor and device, in hexadecimal.
    pub id: String,
    /// The base's driver that has it.
    pub driver: Option<String>,
    /// The node that has it.
    pub node: Option<String>,
    /// Why it cannot be a node's; what the base needs it for is no such reason.
    pub obstacle: Option<String>,
}

/// All functions that are no bridges. `holder` tells which node has one.
#[must_use]
pub fn all(root: &Root, holder: impl Fn(PciAddress) -> Option<String>) -> Vec<DeviceView> {
    let functions = Function::all(root);
    let devices = functions.iter().filter(|function| !function.is_bridge());
    let view = |function: &Function| DeviceView {
        address: function.address,
        class: format!("{:06x}", function.class),
        kind: kind(function.class),
        id: format!("{:04x}:{:04x}", function.vendor, function.device),
        driver: function.driver.clone(),
        node: holder(function.address),
        obstacle: select::obstacle(root, function).map(|obstacle| obstacle.short()),
    };
    devices.map(view).collect()
}

/// Words for a class code (PCI Code and ID Assignment Specification, section 1).
fn kind(class: u32) -> &'static str {
    match class >> 8 {
        0x0108 => "NVMe",
        0x0106 => "SATA",
        0x0200 => "Ethernet",
        0x0c03 => "USB",
        _ => match class >> 16 {
            0x00 => "old",
            0x01 => "storage",
            0x02 => "network",
            0x03 => "display",
            0x04 => "multimedia",
            0x07 => "communication",
            0x08 => "system",
            0x0b => "processor",
            0x0c => "serial bus",
            0x10 => "cryptography",
            0x12 => "accelerator",
            _ => "other",
        },
    }
}

/// A function that a node has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HeldView {
    /// Its address.
    pub address: PciAddress,
    /// Whether the node has it, not the base again.
    pub held: bool,
    /// Whether an IOMMU keeps it from memory that is not the node's.
    pub confined: bool,
}

impl From<&abi::Device> for HeldView {
    fn from(device: &abi::Device) -> Self {
        Self {
            address: PciAddress::from_abi(device),
            held: device.flags & abi::DEVICE_HELD != 0,
            confined: device.flags & abi::DEVICE_CONFINED != 0,
        }
    }
}
