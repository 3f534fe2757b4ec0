//! What one file describes.

use std::path::PathBuf;

use insula_driver::name::Name;
use insula_image::{BuildFiles, Files, Payload};
use insula_node::NodeSpec;
use insula_node::attachment::Subnet;
use insula_policy::Policy;
use insula_servers::ServerSpec;

use super::diagnostic::{Diagnostic, Source, Span};
use super::file::File;
use super::order::Dependencies;
use super::reader::Reader;
use super::spans::Spans;

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
    /// Networks, in the file's order.
    pub networks: Vec<WantedNetwork>,
    /// Servers, by their nodes' names and their own.
    pub servers: Vec<WantedServer>,
    /// Policies, in the file's order; paths are absolute.
    pub policies: Vec<Policy>,
}

/// An image that a file describes.
#[derive(Clone, Debug)]
pub struct WantedImage {
    /// Its name.
    pub name: Name,
    /// What it is made from.
    pub kernel: WantedKernel,
    /// Kernel command line of every node of this image.
    pub append: String,
    /// Form of the kernel to keep.
    pub payload: Payload,
    /// Where its keys are in the file.
    pub spans: Spans,
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
    /// Its image.
    pub image: Name,
    /// What it is to be; paths are absolute.
    pub spec: NodeSpec,
    /// Where its keys are in the file.
    pub spans: Spans,
}

/// A network that a file describes.
#[derive(Clone, Debug)]
pub struct WantedNetwork {
    /// Its name.
    pub name: Name,
    /// Its addresses; any if not given.
    pub subnet: Option<Subnet>,
    /// Whether it has no way to other hosts.
    pub internal: bool,
    /// Where its keys are in the file.
    pub spans: Spans,
}

/// A server that a file describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedServer {
    /// Name of its node.
    pub node: Name,
    /// Its name.
    pub name: Name,
    /// What it is to be; a program's path is absolute, unless it is a name.
    pub spec: ServerSpec,
    /// Where it is in the file.
    pub at: Span,
}

impl WantedImage {
    /// Where its kernel is named.
    #[must_use]
    pub fn kernel_at(&self) -> Span {
        match self.kernel {
            WantedKernel::Files(_) => self.spans.at("kernel"),
            WantedKernel::Installed(_) | WantedKernel::Agent(..) => self.spans.at("installed"),
        }
    }

    /// Where its initrd is named, or else its kernel.
    #[must_use]
    pub fn initrd_at(&self) -> Span {
        match self.spans.has("initrd") {
            true => self.spans.at("initrd"),
            false => self.kernel_at(),
        }
    }
}

impl WantedNode {
    /// The key that gives its cores.
    #[must_use]
    pub fn cores_key(&self) -> &'static str {
        match self.spec.cpu_list {
            Some(_) => "cpu_list",
            None => "cpus",
        }
    }
}

impl Project {
    /// Reads what a file describes. `name` overrides the project name in the file.
    ///
    /// # Errors
    /// All errors that can be found in the file alone.
    pub fn read(source: &Source, name: Option<&Name>) -> Result<Self, Vec<Diagnostic>> {
        let (file, spans) = File::parse(source).map_err(|diagnostic| vec![diagnostic])?;
        Reader::new(source, spans).project(file, name)
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
        let after = node.spec.after.iter().cloned();
        (node.name.clone(), after.collect())
    };
    nodes.iter().map(entry).collect()
}
