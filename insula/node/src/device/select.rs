//! Checking and selecting functions for a node.

use std::ops::RangeInclusive;

use insula_abi as abi;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_boot::{Chunk, Configuration, ConfinedFunction, PciBus};
use insula_driver::CallError;
use nix::errno::Errno;

use super::function::Function;
use crate::isolation::Isolation;
use crate::run::GIVEN_BACK;

use super::{PciAddress, confined, ecam, interrupts_are_remapped, usage};

/// The module's driver, to which nodes' functions are bound.
const MODULE_DRIVER: &str = "insula";

/// What makes a PCI function unsuitable for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It is a bridge.
    Bridge,
    /// It shares its bus with others.
    Shared(Vec<String>),
    /// It is on a root bus.
    RootBus,
    /// It has only INTx interrupts.
    NoMessages,
    /// The machine remaps interrupts.
    Remapped,
    /// A confined node's would be trusted with interrupts.
    NotRemapped,
    /// A confined node's would be trusted with memory.
    NoIommu,
    /// It has no MSI-X in a BAR, or is in a segment that I/O ports do not reach.
    NotConfinable,
    /// It cannot be reset alone.
    NoReset,
    /// Its configuration space is only behind I/O ports.
    NoEcam,
}

fn listed(names: &[String]) -> String {
    match names {
        [one] => format!("{one} is"),
        many => format!("{} are", many.join(", ")),
    }
}

impl Obstacle {
    /// The obstacle as a predicate.
    fn predicate(&self) -> String {
        let text = match self {
            Self::Bridge => "is a bridge",
            Self::Shared(names) => {
                return format!("is not alone on its bus: {} there as well", listed(names));
            }
            Self::RootBus => {
                "is on a root bus, which belongs to the base, not behind a port of its own"
            }
            Self::NoMessages => "has neither MSI nor MSI-X",
            Self::Remapped => {
                "needs MSI messages to its node, which this machine's interrupt remapping blocks"
            }
            Self::NotRemapped => {
                "could interrupt any core for a confined node, since this machine does not remap interrupts"
            }
            Self::NoIommu => {
                "could access all memory for a confined node, since no IOMMU is in use for it"
            }
            Self::NotConfinable => {
                "cannot be a confined node's: it has no MSI-X, or is not in PCI segment 0"
            }
            Self::NoReset => "cannot be reset on its own",
            Self::NoEcam => {
                "has no configuration space in memory (ECAM): the firmware's MCFG table does not \
                 list its bus"
            }
        };
        text.to_owned()
    }

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
                "give it to a confined node (--isolation vmm), or boot the base with `intremap=off` on its \
                 command line; `insula machine check` shows whether it is off"
            }
            Self::NotRemapped | Self::NoIommu => {
                "boot the base with its IOMMU and interrupt remapping (`intel_iommu=on` for Intel's, without \
                 `intremap=off`), or trust the node: without --isolation vmm"
            }
            Self::NotConfinable => "use another device, or trust the node: without --isolation vmm",
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
            Self::NotRemapped => "interrupts are not remapped".to_owned(),
            Self::NoIommu => "no IOMMU".to_owned(),
            Self::NotConfinable => "no MSI-X".to_owned(),
            Self::NoMessages => "no MSI".to_owned(),
            Self::NoReset => "no reset".to_owned(),
            Self::NoEcam => "no ECAM".to_owned(),
            Self::Bridge => "bridge".to_owned(),
        }
    }
}

/// The first obstacle of a function for a node of this isolation, if any.
pub(super) fn obstacle(root: &Root, function: &Function, isolation: Isolation) -> Option<Obstacle> {
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
    match (isolation, interrupts_are_remapped(root)) {
        (Isolation::Direct, true) => return Some(Obstacle::Remapped),
        (Isolation::Vmm, false) => return Some(Obstacle::NotRemapped),
        (Isolation::Vmm, true) if !function.has_iommu => return Some(Obstacle::NoIommu),
        _ => {}
    }
    if !function.has_reset {
        return Some(Obstacle::NoReset);
    }
    let needs_ecam = isolation == Isolation::Direct;
    (needs_ecam && ecam::base(root, function.address).is_none()).then_some(Obstacle::NoEcam)
}

/// A suitable function, with what the node needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Its address.
    pub address: PciAddress,
    found: Found,
    windows: Vec<Chunk>,
    ports: Vec<RangeInclusive<u16>>,
}

/// How the node finds its configuration space.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// In memory, at this address for bus 0.
    InMemory(u64),
    /// By I/O ports.
    ByPorts(Box<ConfinedFunction>),
}

impl Selected {
    /// Its bus as the node sees it.
    #[must_use]
    pub fn bus(&self) -> PciBus<'_> {
        PciBus {
            segment: self.address.segment,
            number: self.address.bus,
            configuration: match &self.found {
                Found::InMemory(ecam) => Configuration::Memory { ecam: *ecam },
                Found::ByPorts(function) => Configuration::Ports(function),
            },
            windows: &self.windows,
            ports: &self.ports,
        }
    }

    /// The function as the module is asked for it.
    #[must_use]
    pub(crate) fn to_abi(&self) -> abi::Device {
        abi::Device {
            flags: match self.found {
                Found::InMemory(_) => 0,
                Found::ByPorts(_) => abi::DEVICE_RELAYED,
            },
            ..self.address.to_abi()
        }
    }
}

/// Checks functions for a new node. Those that the base needs are refused without `force`.
///
/// # Errors
/// Why it cannot be a node's; nothing was touched.
pub fn select(
    root: &Root,
    addresses: &[PciAddress],
    isolation: Isolation,
    force: bool,
) -> Result<Vec<Selected>, Error> {
    let selected = describe(root, addresses, isolation)?;
    let functions = functions(root, addresses)?;
    let is_attached = |function: &&Function| function.driver.as_deref() == Some(MODULE_DRIVER);
    if let Some(taken) = functions.iter().find(is_attached) {
        return Err(taken_by_node(taken.address));
    }
    let uses = usage::of(root, &functions.iter().collect::<Vec<_>>());
    match addresses.first() {
        Some(&address) if !uses.is_empty() && !force => Err(needed(address, &uses)),
        _ => Ok(selected),
    }
}

/// Describes functions, which may be attached to the node already.
///
/// # Errors
/// Why it cannot be a node's; nothing was touched.
pub fn describe(
    root: &Root,
    addresses: &[PciAddress],
    isolation: Isolation,
) -> Result<Vec<Selected>, Error> {
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            return Err(twice(*address));
        }
    }
    let functions = functions(root, addresses)?;
    functions
        .iter()
        .map(|function| selected(root, function, isolation))
        .collect()
}

fn functions(root: &Root, addresses: &[PciAddress]) -> Result<Vec<Function>, Error> {
    let read = |&address| Function::read(root, address).ok_or_else(|| unknown(address));
    addresses.iter().map(read).collect()
}

fn selected(root: &Root, function: &Function, isolation: Isolation) -> Result<Selected, Error> {
    let address = function.address;
    let refused = |obstacle| unsuitable(address, &obstacle);
    if let Some(obstacle) = obstacle(root, function, isolation) {
        return Err(refused(obstacle));
    }
    if isolation == Isolation::Vmm {
        return for_confined(function).ok_or_else(|| refused(Obstacle::NotConfinable));
    }
    let ecam = ecam::base(root, address).ok_or_else(|| refused(Obstacle::NoEcam))?;
    let (windows, ports) = function.resources();
    Ok(Selected {
        address,
        found: Found::InMemory(ecam),
        windows,
        ports,
    })
}

/// The function for a confined node, which has no ports.
fn for_confined(function: &Function) -> Option<Selected> {
    let address = function.address;
    let (bars, windows) = function.bars();
    let described = confined::describe(address, &function.config(), &bars)?;
    (address.segment == 0).then(|| Selected {
        address,
        found: Found::ByPorts(Box::new(described)),
        windows,
        ports: Vec::new(),
    })
}

/// Makes a readable error of the module's refusal.
#[must_use]
pub(crate) fn explain(address: PciAddress, error: CallError) -> Error {
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
    let kind = match error.errno {
        Errno::EBUSY => Kind::Unavailable,
        _ => Kind::Other,
    };
    let what = format!("device {address} could not be attached: {why}");
    Error::of(kind, what).leaving(GIVEN_BACK)
}

/// An error about a device, before anything is taken.
fn refused(kind: Kind, what: String) -> Error {
    Error::of(kind, what).untouched()
}

fn unknown(address: PciAddress) -> Error {
    refused(Kind::Other, format!("there is no PCI function {address}"))
        .hint("`insula machine info` lists all")
}

fn twice(address: PciAddress) -> Error {
    refused(Kind::Other, format!("device {address} is given twice")).hint("give it once")
}

fn taken_by_node(address: PciAddress) -> Error {
    let what = format!("device {address} is already attached to a node");
    refused(Kind::Unavailable, what).hint("stop that node: `insula machine info` shows which")
}

fn unsuitable(address: PciAddress, obstacle: &Obstacle) -> Error {
    let what = format!("device {address} {}", obstacle.predicate());
    refused(Kind::Other, what).hint(obstacle.hint())
}

/// `address` is the first of the requested functions.
fn needed(address: PciAddress, uses: &[String]) -> Error {
    let what = format!("the base needs device {address}: {}", uses.join(", "));
    refused(Kind::Unavailable, what).hint("stop using it, or attach it anyway with --force-device")
}
