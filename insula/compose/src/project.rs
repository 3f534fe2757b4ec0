//! What one file describes.

use std::path::PathBuf;
use std::time::Duration;

use insula_driver::name::Name;
use insula_image::{BuildFiles, Files, Payload};
use insula_node::attachment::{DiskSpec, Networking};
use insula_node::cores::CoreRequest;
use insula_node::device::PciAddress;
use insula_node::memory::MemorySpec;
use insula_node::policy::Policy;

use super::diagnostic::{Diagnostic, Source, Span};
use super::file::File;
use super::order::Dependencies;
use super::reader::Reader;

/// The file that is read when none is given, and whose folder names the project.
pub const FILE: &str = "insula.toml";

/// What one file describes.
#[derive(Clone, Debug)]
pub struct Project {
    /// Name of the project.
    pub name: Name,
    /// Where that is in the file, or the file's start.
    pub at: Span,
    /// The file's text.
    pub source: Source,
    /// The file's path, absolute.
    pub path: PathBuf,
    /// Images, in the file's order.
    pub images: Vec<WantedImage>,
    /// Nodes, in the file's order.
    pub nodes: Vec<WantedNode>,
}

/// An image that a file describes.
#[derive(Clone, Debug)]
pub struct WantedImage {
    /// Its name.
    pub name: Name,
    /// Where that is in the file.
    pub at: Span,
    /// What it is made from.
    pub kernel: WantedKernel,
    /// Where its kernel is named.
    pub kernel_at: Span,
    /// Where its initrd is named.
    pub initrd_at: Span,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// Form of the kernel to keep.
    pub payload: Payload,
}

/// What an image is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedKernel {
    /// An installed kernel, by its release or the beginning of it.
    Installed(String),
    /// Kernel and initrd by path.
    Files(Files),
    /// An installed kernel, with an initial file system of the agent and its nodes' drivers.
    Agent(String, BuildFiles),
}

/// A node that a file describes.
#[derive(Clone, Debug)]
pub struct WantedNode {
    /// Its name.
    pub name: Name,
    /// Where that is in the file.
    pub at: Span,
    /// Its image.
    pub image: Name,
    /// Where that is in the file.
    pub image_at: Span,
    /// Its cores.
    pub cores: CoreRequest,
    /// Where they are in the file.
    pub cores_at: Span,
    /// Most cores that it may have later; 0 for those it starts with.
    pub cores_max: u32,
    /// Its memory.
    pub memory: Vec<MemorySpec>,
    /// Where that is in the file.
    pub memory_at: Span,
    /// Its own part of the command line.
    pub append: String,
    /// Where that is in the file.
    pub append_at: Span,
    /// PCI functions to pass through.
    pub devices: Vec<PciAddress>,
    /// Where they are in the file.
    pub devices_at: Span,
    /// Whether to pass them through even if the base needs them.
    pub force_devices: bool,
    /// Its attachments to the base's files and network.
    pub attachments: WantedAttachments,
    /// Whether a dump is kept when it crashes.
    pub dump_on_crash: bool,
    /// What is done when it has stopped.
    pub policy: Policy,
    /// Nodes that must be ready before it is started, and where each is named.
    pub after: Vec<(Name, Span)>,
    /// What marks it as ready; `None` if it is as soon as its kernel runs.
    pub ready: Option<Ready>,
}

/// A node's attachments to the base's files and network.
#[derive(Clone, Debug)]
pub struct WantedAttachments {
    /// Path of its root file system, if that is not its image's initial file system.
    pub root: Option<PathBuf>,
    /// Where that is in the file.
    pub root_at: Span,
    /// Whether changes to the root file system stay in the node's memory.
    pub overlay: bool,
    /// Its disks.
    pub disks: Vec<DiskSpec>,
    /// Where they are in the file.
    pub disks_at: Span,
    /// Its network attachment, if it has one.
    pub network: Option<Networking>,
    /// Where its address is in the file.
    pub address_at: Span,
    /// Where its ports are in the file.
    pub publish_at: Span,
    /// The program to run, and its arguments; empty for none.
    pub program: Vec<String>,
}

/// The mark of a node that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Text in a line of its kernel log.
    pub log: String,
    /// Time from its start within which it must be ready.
    pub timeout: Duration,
}

impl Project {
    /// Reads what a file describes. `name` overrides the project name in the file.
    ///
    /// # Errors
    /// All errors that can be found in the file alone.
    pub fn read(source: &Source, name: Option<&Name>) -> Result<Self, Vec<Diagnostic>> {
        let file = File::parse(source).map_err(|diagnostic| vec![diagnostic])?;
        Reader::new(source).project(file, name)
    }

    /// Dependencies of its nodes.
    #[must_use]
    pub fn dependencies(&self) -> Dependencies {
        dependencies(&self.nodes)
    }
}

/// Dependencies of these nodes.
pub(super) fn dependencies(nodes: &[WantedNode]) -> Dependencies {
    let entry = |node: &WantedNode| {
        let after = node.after.iter().map(|(name, _)| name.clone());
        (node.name.clone(), after.collect())
    };
    nodes.iter().map(entry).collect()
}
