//! PCI functions for nodes: which are suitable, and what a node needs to know of them.
//!
//! Refusals are made here with messages for the user, before anything is touched; the module checks
//! again what its own safety depends on.

mod address;
mod confined;
mod ecam;
#[cfg(any(test, feature = "test-utils"))]
pub mod fake;
mod function;
mod select;
#[cfg(test)]
mod tests;
mod usage;

pub use address::{AddressError, PciAddress};
pub(crate) use select::explain;
pub use select::{Selected, describe, select};

use insula_abi as abi;
use insula_base::root::Root;
use serde::Serialize;

use crate::isolation::Isolation;
use function::Function;

/// Whether the machine's IOMMUs remap interrupts, which blocks MSI messages set up by a node. The
/// names of remapped interrupt chips begin with IR: drivers/iommu/intel and amd.
#[must_use]
pub fn interrupts_are_remapped(root: &Root) -> bool {
    root.text("/proc/interrupts")
        .is_ok_and(|text| text.contains(" IR-"))
}

/// State of a PCI function for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DeviceView {
    /// Its address.
    pub address: PciAddress,
    /// Class code, subclass and programming interface, in hexadecimal.
    pub class: String,
    /// Kind of device in words.
    pub kind: &'static str,
    /// Vendor and device, in hexadecimal.
    pub id: String,
    /// The base's driver that is bound to it.
    pub driver: Option<String>,
    /// The node that it is attached to.
    pub node: Option<String>,
    /// Why it cannot be attached to a node, apart from uses of the base.
    pub obstacle: Option<String>,
}

/// All functions except bridges. `holder` returns the node that a function is attached to.
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
        obstacle: select::obstacle(root, function, Isolation::Direct)
            .map(|obstacle| obstacle.short()),
    };
    devices.map(view).collect()
}

/// Name of a class code (PCI Code and ID Assignment Specification, section 1).
fn kind(class: u32) -> &'static str {
    match class >> 8 {
        0x0108 => "NVMe",
        0x0106 => "SATA",
        0x0200 => "Ethernet",
        0x0c03 => "USB",
        _ => match class >> 16 {
            0x00 => "unclassified",
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

/// A function that is or was attached to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct AttachedDevice {
    /// Its address.
    pub address: PciAddress,
    /// Whether it is attached, not returned to the base.
    pub attached: bool,
    /// Whether an IOMMU limits its DMA to the node's memory.
    pub iommu: bool,
}

impl From<&abi::Device> for AttachedDevice {
    fn from(device: &abi::Device) -> Self {
        Self {
            address: PciAddress::from_abi(device),
            attached: device.flags & abi::DEVICE_ATTACHED != 0,
            iommu: device.flags & abi::DEVICE_IOMMU != 0,
        }
    }
}
