//! What the machine has, and what runs on it, at one moment.

use std::collections::{BTreeMap, BTreeSet};

use insula_abi as abi;

use crate::cores::View;
use crate::device::PciAddress;
use crate::driver::{CallError, Driver};
use crate::image::{self, Description};
use crate::name::{self, Name};
use crate::node::{Claims, Described, Handle};
use crate::root::Root;
use crate::topology::{BaseMemory, Topology};
use crate::virtio::{DiskFile, Networking};

/// Why the machine cannot be looked at. Nothing has been touched.
#[derive(Debug, thiserror::Error)]
pub enum PresentError {
    /// The module failed.
    #[error("the module failed: {0}; nothing was touched")]
    Call(#[from] CallError),
    /// The images cannot be had.
    #[error(transparent)]
    Images(#[from] image::FindError),
}

/// What the machine has at one moment.
#[derive(Clone, Debug)]
pub struct Present {
    /// What the module knows of the machine.
    pub machine: abi::Machine,
    /// The cores.
    pub view: View,
    /// What sysfs shows.
    pub topology: Topology,
    /// The base's memory.
    pub base: Option<BaseMemory>,
    /// All nodes.
    pub nodes: BTreeMap<Name, PresentNode>,
    /// All images; nothing is known of those that another version of the command made.
    pub images: BTreeMap<Name, Option<Description>>,
}

/// A node that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentNode {
    /// Whether it runs.
    pub life: Life,
    /// The cores that it has now.
    pub cpus: Vec<u32>,
    /// Bytes of its memory.
    pub memory_size: u64,
    /// The PCI functions that it has now.
    pub devices: Vec<PciAddress>,
    /// How it is on the network.
    pub network: Option<Networking>,
    /// Its disks.
    pub disks: Vec<DiskFile>,
    /// The image that it was started from.
    pub image: Option<String>,
    /// By which file it is described.
    pub described: Option<Described>,
}

/// Whether a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Another command is just starting it.
    Starting,
    /// It runs, or its supervisor is about to start it again.
    Running,
    /// It has ended.
    Stopped,
}

impl Present {
    /// Asks the module and Linux; `handles` are all nodes ([`node::all`](crate::node::all)).
    ///
    /// # Errors
    /// [`PresentError`].
    pub fn read(driver: &Driver, root: &Root, handles: &[Handle]) -> Result<Self, PresentError> {
        let mut nodes = BTreeMap::new();
        for handle in handles {
            // The module takes other names than ours, but only from others.
            if let Ok(name) = name::text(&handle.info.name).parse() {
                nodes.insert(name, PresentNode::new(handle)?);
            }
        }
        let (machine, cpus) = driver.machine()?;
        let topology = Topology::read(root);
        Ok(Self {
            machine,
            view: View::new(&topology, &cpus),
            topology,
            base: BaseMemory::read(root),
            nodes,
            images: images(driver)?,
        })
    }

    /// The nodes that a project made.
    pub fn nodes_of(&self, project: &Name) -> impl Iterator<Item = (&Name, &PresentNode)> {
        let is_its = move |node: &PresentNode| node.project() == Some(project.as_str());
        self.nodes.iter().filter(move |(_, node)| is_its(node))
    }

    /// The nodes that this one came after when it was started.
    #[must_use]
    pub fn came_after(&self, name: &Name) -> BTreeSet<Name> {
        let described = self
            .nodes
            .get(name)
            .and_then(|node| node.described.as_ref());
        let after = described.into_iter().flat_map(|by| &by.after);
        after.filter_map(|name| name.parse().ok()).collect()
    }

    /// Whether nodes of others than this project were started from the image.
    #[must_use]
    pub fn is_used_by_others(&self, image: &Name, project: &Name) -> bool {
        let mut others = self.nodes.values();
        others.any(|node| {
            node.image.as_deref() == Some(image.as_str())
                && node.project() != Some(project.as_str())
        })
    }

    /// The images that a project made.
    pub fn images_of(&self, project: &Name) -> impl Iterator<Item = &Name> {
        let is_its = move |image: &Option<Description>| {
            let made_by = image.as_ref().and_then(|image| image.project.as_deref());
            made_by == Some(project.as_str())
        };
        let its = self.images.iter().filter(move |(_, image)| is_its(image));
        its.map(|(name, _)| name)
    }
}

impl PresentNode {
    fn new(handle: &Handle) -> Result<Self, CallError> {
        let life = match handle.info.state {
            abi::State::CREATING | abi::State::CREATED if handle.info.starts == 0 => Life::Starting,
            abi::State::STOPPED if !handle.is_restarting() => Life::Stopped,
            _ => Life::Running,
        };
        let cpus = handle.cpus.iter().map(|cpu| cpu.cpu);
        let record = handle.record.as_ref();
        let devices = handle.node.devices()?;
        let is_held = |device: &&abi::Device| device.flags & abi::DEVICE_HELD != 0;
        let held = devices.iter().filter(is_held);
        Ok(Self {
            life,
            cpus: cpus.filter(|_| life != Life::Stopped).collect(),
            memory_size: handle.info.memory_size,
            devices: held.map(PciAddress::from_abi).collect(),
            network: record.and_then(|record| record.network.clone()),
            disks: record.map_or_else(Vec::new, |record| record.disks.clone()),
            image: record.and_then(|record| record.image.clone()),
            described: record.and_then(|record| record.described.clone()),
        })
    }

    /// What no other node can have.
    pub(super) fn claims(&self) -> Claims<'_> {
        Claims {
            network: self.network.as_ref(),
            disks: &self.disks,
        }
    }

    /// The project that made it.
    #[must_use]
    pub fn project(&self) -> Option<&str> {
        self.described.as_ref().map(|by| by.project.as_str())
    }
}

fn images(driver: &Driver) -> Result<BTreeMap<Name, Option<Description>>, image::FindError> {
    let listing = image::list(driver)?;
    let unreadable = listing.unreadable.iter().filter_map(|error| match error {
        image::FindError::Description { name, .. } => Some((name.parse().ok()?, None)),
        _ => None,
    });
    let known = listing.images.into_iter();
    let known = known.map(|image| (image.name, Some(image.description)));
    Ok(known.chain(unreadable).collect())
}
