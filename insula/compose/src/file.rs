//! The file format. The published JSON Schema is generated from these types and from [`NodeSpec`].

use std::collections::BTreeMap;
use std::path::PathBuf;

use insula_driver::name::Name;
use insula_image::Payload;
use insula_node::NodeSpec;
use insula_node::attachment::Subnet;
use insula_policy::Policy;
use insula_servers::ServerSpec;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::de::{DeTable, Error};

use super::diagnostic::{Diagnostic, Source};
use super::spans::Spans;

/// Nodes, and the images that they are started from (`insula up`).
///
/// Keys that `insula run` or `insula image add` have as options mean the same here. Paths are
/// relative to the file's folder.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(title = "insula.toml"))]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Version of the format: 1, also if it is not given.
    #[cfg_attr(test, schemars(extend("const" = 1)))]
    pub(super) version: Option<u32>,
    /// Name of the project; by default that of the file's folder, or, of a file that is not called
    /// insula.toml, its own name without the extension.
    pub(super) project: Option<Name>,
    /// Images to make resident, by name.
    #[serde(default)]
    pub(super) images: BTreeMap<Name, ImageTable>,
    /// Nodes to start, by name.
    #[serde(default)]
    pub(super) nodes: BTreeMap<Name, NodeSpec>,
    /// Networks beside the one of all nodes, by name.
    #[serde(default)]
    pub(super) networks: BTreeMap<Name, NetworkTable>,
    /// Servers to keep running, by the name of their node, which is one of the file's, and their own.
    #[serde(default)]
    pub(super) servers: BTreeMap<Name, BTreeMap<Name, ServerSpec>>,
    /// When programs are moved to nodes and back: for `insula policy`.
    #[serde(default)]
    pub(super) policy: Vec<Policy>,
}

/// A kernel to keep in memory.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("oneOf" = [{"required": ["installed"]}, {"required": ["kernel"]}])))]
#[serde(deny_unknown_fields)]
pub(super) struct ImageTable {
    /// Use the files of an installed kernel, by its release or the beginning of it.
    pub(super) installed: Option<String>,
    /// Build the initrd for the installed kernel, with an agent, for nodes used as containers: as
    /// `insula image build` does.
    #[serde(default)]
    pub(super) agent: bool,
    /// Folder whose content is added to that initrd.
    pub(super) content: Option<PathBuf>,
    /// Folder with insula.ko and insula_virtio.ko for that kernel, if not where DKMS puts them.
    pub(super) module_folder: Option<PathBuf>,
    /// The kernel: a bzImage or an ELF vmlinux.
    pub(super) kernel: Option<PathBuf>,
    /// The initrd.
    pub(super) initrd: Option<PathBuf>,
    /// Kernel command line of every node of this image.
    #[serde(default)]
    pub(super) append: String,
    /// Form of the kernel in the image.
    #[serde(default)]
    pub(super) layout: Payload,
}

/// A network with a name: as `insula network create` makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(super) struct NetworkTable {
    /// Its addresses, such as "10.80.0.0/16". Default: free ones.
    pub(super) subnet: Option<Subnet>,
    /// Give it no way to other hosts, and none from them.
    pub(super) internal: bool,
}

impl File {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The first error, and where it is.
    pub(super) fn parse(source: &Source) -> Result<(Self, Spans), Diagnostic> {
        let diagnostic = |error: Error| {
            let span = error.span().unwrap_or_default();
            source.diagnostic(span, error.message(), hint(error.message()))
        };
        let table = DeTable::parse(&source.text).map_err(diagnostic)?;
        let spans = Spans::of_file(table.get_ref());
        let file = Self::deserialize(table.into_deserializer()).map_err(diagnostic)?;
        Ok((file, spans))
    }
}

/// Hint for an error of the TOML library, which gives none itself.
fn hint(message: &str) -> &'static str {
    let hints = [
        (
            "duplicate key",
            "keep one of them, or give one another name",
        ),
        ("missing field", "add it to this table"),
    ];
    let found = hints.iter().find(|(start, _)| message.starts_with(start));
    found.map_or("", |(_, hint)| hint)
}
