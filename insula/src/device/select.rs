//! Choosing functions for a node, and refusing those that cannot be one's.

use std::ops::RangeInclusive;

use insula_boot::{Chunk, PciBus};
use nix::errno::Errno;

use super::function::Function;
use super::{PciAddress, ecam, interrupts_are_remapped, usage};
use crate::driver::CallError;
use crate::root::Root;

/// The driver of the module, which has the functions that are nodes'.
const OUR_DRIVER: &str = "insula";

/// Why a PCI function is not given to a node.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// There is none.
    #[error(
        "there is no PCI function {0}; nothing was touched\n\
         `insula machine info` lists those there are"
    )]
    Unknown(PciAddress),
    /// It was named more than once.
    #[error("device {0} is named twice; nothing was touched\nname it once")]
    Twice(PciAddress),
    /// A node has it.
    #[error(
        "device {0} belongs to a node already; nothing was touched\n\
         stop that node: `insula machine info` shows which has it"
    )]
    Taken(PciAddress),
    /// It cannot be a node's.
    #[error("device {address} {obstacle}; nothing was touched\n{}", obstacle.way_out())]
    Unfit {
        /// Which.
        address: PciAddress,
        /// Why not.
        obstacle: Obstacle,
    },
    /// The base would lose what it needs.
    #[error(
        "the base needs device {address}: {}; nothing was touched\n\
         stop using it, or take it all the same with --force-device", uses.join(", ")
    )]
    Needed {
        /// The first of those that were asked for.
        address: PciAddress,
        /// What for.
        uses: Vec<String>,
    },
    /// The module could not take it.
    #[error(
        "device {address} could not be taken: {why}; what was taken for the node has been given back"
    )]
    NotTaken {
        /// Which.
        address: PciAddress,
        /// Why.
        why: String,
    },
}

/// What keeps a PCI function from being a node's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It is a bridge.
    #[error("is a bridge")]
    Bridge,
    /// It shares its bus.
    #[error("is not alone on its bus: {} there too", listed(.0))]
    Shared(Vec<String>),
    /// It lies on a root bus.
    #[error("lies on a root bus, which is the base's, not behind a port of its own")]
    RootBus,
    /// It interrupts by a wire.
    #[error("cannot interrupt by messages (MSI or MSI-X)")]
    NoMessages,
    /// Interrupts are remapped.
    #[error("would interrupt its node by messages that this machine's interrupt remapping blocks")]
    Remapped,
    /// It keeps its state.
    #[error("cannot be reset by itself")]
    NoReset,
    /// Configuration space is behind ports.
    #[error(
        "has no configuration space in memory (ECAM): the firmware's MCFG table does not name its bus"
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
    /// What to do about it.
    fn way_out(&self) -> &'static str {
        match self {
            Self::Bridge => "name a device behind it",
            Self::Shared(_) | Self::RootBus => {
                "a node is given a whole bus: use a device in a slot of its own, behind a PCI Express port"
            }
            Self::NoMessages => "use a device that has MSI or MSI-X: wires lead to the base",
            Self::Remapped => {
                "boot the base with `intremap=off` on its command line; `insula machine check` tells whether it is off"
            }
            Self::NoReset => {
                "use a device that has a reset of its own or a port of its own, and of which `reset_method` in sysfs names one"
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

/// What keeps a function from being a node's, if anything does.
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

/// A function that can be a node's, and what the node must be told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Its address.
    pub address: PciAddress,
    ecam: u64,
    windows: Vec<Chunk>,
    ports: Vec<RangeInclusive<u16>>,
}

impl Selected {
    /// Its bus, as the node is to see it.
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

/// Looks at functions for a new node. Those that the base needs are refused unless `force` is given.
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
    let is_ours = |function: &&Function| function.driver.as_deref() == Some(OUR_DRIVER);
    if let Some(taken) = functions.iter().find(is_ours) {
        return Err(DeviceError::Taken(taken.address));
    }
    let uses = usage::of(root, &functions.iter().collect::<Vec<_>>());
    match addresses.first() {
        Some(&address) if !uses.is_empty() && !force => Err(DeviceError::Needed { address, uses }),
        _ => Ok(selected),
    }
}

/// Looks at functions that may be the node's already.
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
    let unfit = |obstacle| DeviceError::Unfit { address, obstacle };
    if let Some(obstacle) = obstacle(root, function) {
        return Err(unfit(obstacle));
    }
    let ecam = ecam::base(root, address).ok_or_else(|| unfit(Obstacle::NoEcam))?;
    let (windows, ports) = function.resources();
    Ok(Selected {
        address,
        ecam,
        windows,
        ports,
    })
}

/// The module's refusal of a function, in words.
#[must_use]
pub fn explain(address: PciAddress, error: CallError) -> DeviceError {
    let why = match error.errno {
        Errno::EBUSY => "another node has it".to_owned(),
        Errno::ENODEV => "it is gone".to_owned(),
        Errno::EXDEV => {
            "it is not alone on its bus, or the IOMMU cannot tell it from another device".to_owned()
        }
        Errno::EOPNOTSUPP => "it cannot be reset, or its interrupts cannot reach a node".to_owned(),
        Errno::EPERM => {
            "the firmware reserves memory for its DMA (RMRR), or another program has it".to_owned()
        }
        _ => error.to_string(),
    };
    DeviceError::NotTaken { address, why }
}
