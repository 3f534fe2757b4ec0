//! The machine's current state: its resources, images and nodes.

use std::collections::{BTreeMap, BTreeSet};

use insula_abi as abi;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::topology::{BaseMemory, Topology};
use insula_driver::name::{self, Name};
use insula_driver::{CallError, Driver};
use insula_image::{self as image, Description};
use insula_node::attachment::{DiskFile, Networking};
use insula_node::cores::Cores;
use insula_node::device::PciAddress;
use insula_node::networks::{NetworkDefinition, Networks};
use insula_node::{Claims, Described, Handle};

/// The machine's state at one moment.
#[derive(Clone, Debug)]
pub struct CurrentState {
    /// The machine as the module knows it.
    pub machine: abi::Machine,
    /// The cores.
    pub view: Cores,
    /// The topology from sysfs.
    pub topology: Topology,
    /// The base's memory.
    pub base: Option<BaseMemory>,
    /// All nodes.
    pub nodes: BTreeMap<Name, CurrentNode>,
    /// All networks.
    pub networks: Networks,
    /// All images; `None` for those whose description another version of the command has written.
    pub images: BTreeMap<Name, Option<Description>>,
}

/// An existing node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentNode {
    /// Whether it runs.
    pub state: RunState,
    /// Its present cores.
    pub cpus: Vec<u32>,
    /// Size of its memory in bytes.
    pub memory_size: u64,
    /// Its present PCI functions.
    pub devices: Vec<PciAddress>,
    /// Its network attachment.
    pub network: Option<Networking>,
    /// Its disks.
    pub disks: Vec<DiskFile>,
    /// Image that it was started from.
    pub image: Option<Name>,
    /// Nodes that it was started after.
    pub after: Vec<Name>,
    /// Project and file that describe it.
    pub described: Option<Described>,
}

/// Whether a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// Another command is starting it.
    Starting,
    /// It runs, or its supervisor is about to restart it.
    Running,
    /// It has stopped.
    Stopped,
}

impl CurrentState {
    /// Reads it from the module and Linux; `handles` are all nodes
    /// ([`node::all`](insula_node::all)).
    ///
    /// # Errors
    /// Why it cannot be read; nothing was touched.
    pub fn read(driver: &Driver, root: &Root, handles: &[Handle]) -> Result<Self, Error> {
        let mut nodes = BTreeMap::new();
        for handle in handles {
            // The module allows more names than we do; such a node is not ours.
            if let Ok(name) = name::text(&handle.info.name).parse() {
                nodes.insert(name, CurrentNode::new(handle).map_err(module_failed)?);
            }
        }
        let (machine, cpus) = driver.machine().map_err(module_failed)?;
        let topology = Topology::read(root);
        Ok(Self {
            machine,
            view: Cores::new(&topology, &cpus),
            topology,
            base: BaseMemory::read(root),
            nodes,
            networks: Networks::read(root, handles)?,
            images: images(driver)?,
        })
    }

    /// The nodes that a project has created.
    pub fn nodes_of(&self, project: &Name) -> impl Iterator<Item = (&Name, &CurrentNode)> {
        let is_its = move |node: &CurrentNode| node.project() == Some(project.as_str());
        self.nodes.iter().filter(move |(_, node)| is_its(node))
    }

    /// Dependencies of a node when it was started.
    #[must_use]
    pub fn dependencies_of(&self, name: &Name) -> BTreeSet<Name> {
        let after = self
            .nodes
            .get(name)
            .into_iter()
            .flat_map(|node| &node.after);
        after.cloned().collect()
    }

    /// Whether nodes of other projects were started from the image.
    #[must_use]
    pub fn is_used_by_others(&self, image: &Name, project: &Name) -> bool {
        let mut others = self.nodes.values();
        others.any(|node| {
            node.image.as_ref() == Some(image) && node.project() != Some(project.as_str())
        })
    }

    /// The nodes on a network with a name.
    pub fn nodes_on(&self, network: &Name) -> impl Iterator<Item = (&Name, &CurrentNode)> {
        let is_on = move |node: &CurrentNode| node.network_name() == Some(network);
        self.nodes.iter().filter(move |(_, node)| is_on(node))
    }

    /// The networks that a project has created.
    pub fn networks_of(&self, project: &Name) -> impl Iterator<Item = &NetworkDefinition> {
        let all = self.networks.named.iter();
        all.filter(move |network| network.project.as_ref() == Some(project))
    }

    /// The images that a project has added.
    pub fn images_of(&self, project: &Name) -> impl Iterator<Item = &Name> {
        let is_its = move |image: &Option<Description>| {
            let created_by = image.as_ref().and_then(|image| image.project.as_deref());
            created_by == Some(project.as_str())
        };
        let its = self.images.iter().filter(move |(_, image)| is_its(image));
        its.map(|(name, _)| name)
    }
}

impl CurrentNode {
    fn new(handle: &Handle) -> Result<Self, CallError> {
        let state = match handle.info.state {
            abi::State::CREATING | abi::State::CREATED if handle.info.starts == 0 => {
                RunState::Starting
            }
            abi::State::STOPPED if !handle.is_restarting() => RunState::Stopped,
            _ => RunState::Running,
        };
        let cpus = handle.cpus.iter().map(|cpu| cpu.cpu);
        let record = handle.record.as_ref();
        let devices = handle.node.devices()?;
        let is_attached = |device: &&abi::Device| device.flags & abi::DEVICE_ATTACHED != 0;
        let attached = devices.iter().filter(is_attached);
        Ok(Self {
            state,
            cpus: cpus.filter(|_| state != RunState::Stopped).collect(),
            memory_size: handle.info.memory_size,
            devices: attached.map(PciAddress::from_abi).collect(),
            network: record.and_then(|record| record.network.clone()),
            disks: record.map_or_else(Vec::new, |record| record.disks.clone()),
            image: record.and_then(|record| record.spec.image.clone()),
            after: record.map_or_else(Vec::new, |record| record.spec.after.clone()),
            described: record.and_then(|record| record.described.clone()),
        })
    }

    /// The node's exclusive resources.
    pub(super) fn claims(&self) -> Claims<'_> {
        Claims {
            network: self.network.as_ref(),
            disks: &self.disks,
            first_is_root: false,
        }
    }

    /// The name of its network, if it is on one with a name.
    #[must_use]
    pub fn network_name(&self) -> Option<&Name> {
        let named = self.network.as_ref()?.named.as_ref()?;
        Some(&named.name)
    }

    /// The project that created it.
    #[must_use]
    pub fn project(&self) -> Option<&str> {
        self.described.as_ref().map(|by| by.project.as_str())
    }
}

fn module_failed(error: CallError) -> Error {
    Error::new("the module failed").because(error).untouched()
}

fn images(driver: &Driver) -> Result<BTreeMap<Name, Option<Description>>, Error> {
    let listing = image::list(driver)?;
    let unreadable = listing.unreadable.into_iter().map(|(name, _)| (name, None));
    let known = listing.images.into_iter();
    let known = known.map(|image| (image.name, Some(image.description)));
    Ok(known.chain(unreadable).collect())
}
