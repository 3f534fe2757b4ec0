//! What one file asks for.

use std::path::PathBuf;
use std::time::Duration;

use super::file::File;
use super::mistake::{Mistake, Source, Span};
use super::order::Waits;
use super::reader::Reader;
use crate::cores::CoreRequest;
use crate::device::PciAddress;
use crate::image::{BuildFiles, Files, Payload};
use crate::memory::MemorySpec;
use crate::name::Name;
use crate::policy::Policy;
use crate::virtio::{DiskSpec, Networking};

/// The file that is read when none is named, and whose folder names the project.
pub const FILE: &str = "insula.toml";

/// What one file asks for.
#[derive(Clone, Debug)]
pub struct Project {
    /// Its name.
    pub name: Name,
    /// Where that stands, or the file's beginning.
    pub at: Span,
    /// The file.
    pub source: Source,
    /// The file's path, absolute.
    pub path: PathBuf,
    /// Images, in the file's order.
    pub images: Vec<WantedImage>,
    /// Nodes, in the file's order.
    pub nodes: Vec<WantedNode>,
}

/// An image that is asked for.
#[derive(Clone, Debug)]
pub struct WantedImage {
    /// Its name.
    pub name: Name,
    /// Where that stands.
    pub at: Span,
    /// What it is made of.
    pub kernel: WantedKernel,
    /// Where its kernel is named.
    pub kernel_at: Span,
    /// Where its initrd is named.
    pub initrd_at: Span,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// Which form of the kernel is kept.
    pub payload: Payload,
}

/// What an image is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedKernel {
    /// An installed kernel, by its release or the beginning of it.
    Installed(String),
    /// Files.
    Files(Files),
    /// An installed kernel, with an initial file system of the agent and what its nodes need.
    Agent(String, BuildFiles),
}

/// A node that is asked for.
#[derive(Clone, Debug)]
pub struct WantedNode {
    /// Its name.
    pub name: Name,
    /// Where that stands.
    pub at: Span,
    /// Its image.
    pub image: Name,
    /// Where that stands.
    pub image_at: Span,
    /// Its cores.
    pub cores: CoreRequest,
    /// Where they are asked for.
    pub cores_at: Span,
    /// Most cores that it may have later, 0 for those it starts with.
    pub cores_max: u32,
    /// Its memory.
    pub memory: Vec<MemorySpec>,
    /// Where that is asked for.
    pub memory_at: Span,
    /// Its own part of the command line.
    pub append: String,
    /// Where that stands.
    pub append_at: Span,
    /// PCI functions that are to be its own.
    pub devices: Vec<PciAddress>,
    /// Where they are named.
    pub devices_at: Span,
    /// Take them even if the base needs them.
    pub force_devices: bool,
    /// What it is to have of the base's files and network.
    pub belongings: WantedBelongings,
    /// Whether a dump is kept when it crashes.
    pub dump_on_crash: bool,
    /// What becomes of it when it ends.
    pub policy: Policy,
    /// Those that must be ready before it is started, and where each is named.
    pub after: Vec<(Name, Span)>,
    /// What tells that it is ready; nothing if it is as soon as its kernel runs.
    pub ready: Option<Ready>,
}

/// What a node is to have of the base's files and network.
#[derive(Clone, Debug)]
pub struct WantedBelongings {
    /// The path of its root, if that is not its image's initial file system.
    pub root: Option<PathBuf>,
    /// Where that stands.
    pub root_at: Span,
    /// Whether what it changes there stays in its memory.
    pub overlay: bool,
    /// Its disks.
    pub disks: Vec<DiskSpec>,
    /// Where they are named.
    pub disks_at: Span,
    /// How it is on the network, if it is.
    pub network: Option<Networking>,
    /// Where its address stands.
    pub address_at: Span,
    /// Where its ports are named.
    pub publish_at: Span,
    /// The program for which it is there, and its arguments; empty for none.
    pub program: Vec<String>,
}

/// What tells that a node is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// A text in a line of its kernel log.
    pub log: String,
    /// When it must be, counted from its start.
    pub timeout: Duration,
}

impl Project {
    /// Reads what a file asks for. `name` goes before the name that the file has.
    ///
    /// # Errors
    /// All that is wrong in the file by itself, whatever the machine has.
    pub fn read(source: &Source, name: Option<&Name>) -> Result<Self, Vec<Mistake>> {
        let file = File::parse(source).map_err(|mistake| vec![mistake])?;
        Reader::new(source).project(file, name)
    }

    /// What its nodes wait for.
    #[must_use]
    pub fn waits(&self) -> Waits {
        waits(&self.nodes)
    }
}

/// What these nodes wait for.
pub(super) fn waits(nodes: &[WantedNode]) -> Waits {
    let entry = |node: &WantedNode| {
        let after = node.after.iter().map(|(name, _)| name.clone());
        (node.name.clone(), after.collect())
    };
    nodes.iter().map(entry).collect()
}
