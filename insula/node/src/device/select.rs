//! Checking and selecting functions for a node.

use std::ops::RangeInclusive;

use insula_base::root::Root;
use insula_boot::{Chunk, PciBus};
use insula_driver::CallError;
use nix::errno::Errno;

use super::function::Function;
use super::{PciAddress, ecam, interrupts_are_remapped, usage};

/// The module's driver, to which nodes' functions are bound.
const MODULE_DRIVER: &str = "insula";

/// Why a PCI function was not attached to a node.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// It does not exist.
    #[error(
        "there is no PCI function {0}; nothing was touched\n\
         `insula machine info` lists all"
    )]
    Unknown(PciAddress),
    /// It is given more than once.
    #[error("device {0} is given twice; nothing was touched\ngive it once")]
    Twice(PciAddress),
    /// It is attached to another node.
    #[error(
        "device {0} is already attached to a node; nothing was touched\n\
         stop that node: `insula machine info` shows which"
    )]
    Taken(PciAddress),
    /// It is not suitable.
    #[error("device {address} {obstacle}; nothing was touched\n{}", obstacle.hint())]
    Unsuitable {
        /// The function.
        address: PciAddress,
        /// Why.
        obstacle: Obstacle,
    },
    /// The base needs it.
    #[error(
        "the base needs device {address}: {}; nothing was touched\n\
         stop using it, or attach it anyway with --force-device", uses.join(", ")
    )]
    Needed {
        /// The first of the requested functions.
        address: PciAddress,
        /// Its uses.
        uses: Vec<String>,
    },
    /// The module could not attach it.
    #[error(
        "device {address} could not be attached: {why}; what was taken for the node has been given \
         back"
    )]
    NotAttached {
        /// The function.
        address: PciAddress,
        /// Why.
        why: String,
    },
}

/// What makes a PCI function unsuitable for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It is a bridge.
    #[error("is a bridge")]
    Bridge,
    /// It shares its bus with others.
    #[error("is not alone on its bus: {} there as well", listed(.0))]
    Shared(Vec<String>),
    /// It is on a root bus.
    #[error("is on a root bus, which belongs to the base, not behind a port of its own")]
    RootBus,
    /// It has only INTx interrupts.
    #[error("has neither MSI nor MSI-X")]
    NoMessages,
    /// The machine remaps interrupts.
    #[error("needs MSI messages to its node, which this machine's interrupt remapping blocks")]
    Remapped,
    /// It cannot be reset alone.
    #[error("cannot be reset on its own")]
    NoReset,
    /// Its configuration space is only behind I/O ports.
    #[error(
        "has no configuration space in memory (ECAM): the firmware's MCFG table does not list its \
         bus"
    )]
    NoEcam,
}

fn listed(names: &[String]) -> String {
    match names {
        [one] => format!("{one} is"),
        many => format!("{} are", many.join(", ")),
    }
}

impl Obstacle {
    /// What the user can do.
    fn hint(&self) -> &'static str {
        match self {
            Self::Bridge => "give a device behind it",
            Self::Shared(_) | Self::RootBus => {
                "a node gets a whole bus: use a device in a slot of its own, behind a PCI Express \
                 port"
            }
            Self::NoMessages => "use a device with MSI or MSI-X: INTx interrupts go to the base",
            Self::Remapped => {
                "boot the base with `intremap=off` on its command line; `insula machine check` \
                 shows whether it is off"
            }
            Self::NoReset => {
                "use a device with a reset of its own or a port of its own, and with an enabled \
                 `reset_method` in sysfs"
            }
            Self::NoEcam => "look for a setting of the firmware (\"MMCONFIG\", \"ECAM\")",
        }
    }

    /// The obstacle in a few words.
    pub(super) fn short(&self) -> String {
        match self {
            Self::Shared(names) => format!("shares its bus with {}", names.join(", ")),
            Self::RootBus => "on a root bus".to_owned(),
            Self::Remapped => "interrupts are remapped".to_owned(),
            Self::NoMessages => "no MSI".to_owned(),
            Self::NoReset => "no reset".to_owned(),
            Self::NoEcam => "no ECAM".to_owned(),
            Self::Bridge => "bridge".to_owned(),
        }
    }
}

/// The first obstacle of a function, if any.
pub(super) fn obstacle(root: &Root, function: &Function) -> Option<Obstacle> {
    if function.is_bridge() {
        return Some(Obstacle::Bridge);
    }
    if function.on_root_bus {
        return Some(Obstacle::RootBus);
    }
    if !function.neighbours.is_empty() {
        return Some(Obstacle::Shared(function.neighbours.clone()));
    }
    if !function.has_messages {
        return Some(Obstacle::NoMessages);
    }
    if interrupts_are_remapped(root) {
        return Some(Obstacle::Remapped);
    }
    if !function.has_reset {
        return Some(Obstacle::NoReset);
    }
    ecam::base(root, function.address)
        .is_none()
        .then_some(Obstacle::NoEcam)
}

/// A suitable function, with what the node needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Its address.
    pub address: PciAddress,
    ecam: u64,
    windows: Vec<Chunk>,
    ports: Vec<RangeInclusive<u16>>,
}

impl Selected {
    /// Its bus as the node sees it.
    #[must_use]
    pub fn bus(&self) -> PciBus<'_> {
        PciBus {
            segment: self.address.segment,
            number: self.address.bus,
            ecam: self.ecam,
            windows: &self.windows,
            ports: &self.ports,
        }
    }
}

/// Checks functions for a new node. Those that the base needs are refused without `force`.
///
/// # Errors
/// [`DeviceError`]; nothing has been touched.
pub fn select(
    root: &Root,
    addresses: &[PciAddress],
    force: bool,
) -> Result<Vec<Selected>, DeviceError> {
    let selected = describe(root, addresses)?;
    let functions = functions(root, addresses)?;
    let is_attached = |function: &&Function| function.driver.as_deref() == Some(MODULE_DRIVER);
    if let Some(taken) = functions.iter().find(is_attached) {
        return Err(DeviceError::Taken(taken.address));
    }
    let uses = usage::of(root, &functions.iter().collect::<Vec<_>>());
    match addresses.first() {
        Some(&address) if !uses.is_empty() && !force => Err(DeviceError::Needed { address, uses }),
        _ => Ok(selected),
    }
}

/// Describes functions, which may be attached to the node already.
///
/// # Errors
/// [`DeviceError`]; nothing has been touched.
pub fn describe(root: &Root, addresses: &[PciAddress]) -> Result<Vec<Selected>, DeviceError> {
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            return Err(DeviceError::Twice(*address));
        }
    }
    let functions = functions(root, addresses)?;
    functions
        .iter()
        .map(|function| selected(root, function))
        .collect()
}

fn functions(root: &Root, addresses: &[PciAddress]) -> Result<Vec<Function>, DeviceError> {
    let read = |&address| Function::read(root, address).ok_or(DeviceError::Unknown(address));
    addresses.iter().map(read).collect()
}

fn selected(root: &Root, function: &Function) -> Result<Selected, DeviceError> {
    let address = function.address;
    let unsuitable = |obstacle| DeviceError::Unsuitable { address, obstacle };
    if let Some(obstacle) = obstacle(root, function) {
        return Err(unsuitable(obstacle));
    }
    let ecam = ecam::base(root, address).ok_or_else(|| unsuitable(Obstacle::NoEcam))?;
    let (windows, ports) = function.resources();
    Ok(Selected {
        address,
        ecam,
        windows,
        ports,
    })
}

/// Makes a readable error of the module's refusal.
#[must_use]
pub(crate) fn explain(address: PciAddress, error: CallError) -> DeviceError {
    let why = match error.errno {
        Errno::EBUSY => "it is attached to another node".to_owned(),
        Errno::ENODEV => "it is gone".to_owned(),
        Errno::EXDEV => {
            "it is not alone on its bus, or the IOMMU cannot tell it from another device".to_owned()
        }
        Errno::EOPNOTSUPP => "it cannot be reset, or its interrupts cannot reach a node".to_owned(),
        Errno::EPERM => {
            "the firmware reserves memory for its DMA (RMRR), or another program uses it".to_owned()
        }
        _ => error.to_string(),
    };
    DeviceError::NotAttached { address, why }
}
