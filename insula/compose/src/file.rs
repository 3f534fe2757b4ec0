//! The file format. The published JSON Schema is generated from these types.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;

use insula_base::units::CpuList;
use insula_driver::name::Name;
use insula_image::Payload;
use insula_node::attachment::{DiskSpec, Publish};
use insula_node::device::PciAddress;
use insula_node::memory::MemorySpec;
use insula_node::policy::{OnHang, Restart};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use toml::Spanned;

use super::diagnostic::{Diagnostic, Source};

/// Nodes, and the images that they are started from (`insula up`).
///
/// Keys that `insula run` or `insula image add` have as options mean the same here.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(title = "insula.toml"))]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Name of the project; by default that of the file's folder, or, of a file that is not called
    /// insula.toml, its own name without the extension.
    #[cfg_attr(test, schemars(with = "Option<Written<Name>>"))]
    pub(super) project: Option<Key<Name>>,
    /// Images to make resident, by name.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "BTreeMap<Written<Name>, ImageTable>"))]
    pub(super) images: BTreeMap<Key<Name>, ImageTable>,
    /// Nodes to start, by name.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "BTreeMap<Written<Name>, NodeTable>"))]
    pub(super) nodes: BTreeMap<Key<Name>, NodeTable>,
}

/// A kernel to keep in memory. Paths are relative to the file's folder.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("oneOf" = [{"required": ["installed"]}, {"required": ["kernel"]}])))]
#[serde(deny_unknown_fields)]
pub(super) struct ImageTable {
    /// Use the files of an installed kernel, by its release or the beginning of it.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) installed: Option<Spanned<String>>,
    /// Build the initrd for the installed kernel, with an agent, for nodes used as containers: as
    /// `insula image build` does.
    #[serde(default)]
    pub(super) agent: bool,
    /// Folder whose content is added to that initrd.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) content: Option<Spanned<PathBuf>>,
    /// Folder with insula.ko and insula_virtio.ko for that kernel, if not where DKMS puts them.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) module_folder: Option<Spanned<PathBuf>>,
    /// The kernel: a bzImage or an ELF vmlinux.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) kernel: Option<Spanned<PathBuf>>,
    /// The initrd.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) initrd: Option<Spanned<PathBuf>>,
    /// Kernel command line of every node of this image.
    #[serde(default)]
    pub(super) append: String,
    /// Form of the kernel in the image.
    #[serde(default)]
    pub(super) layout: LayoutWord,
}

/// Form of the kernel in the image.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum LayoutWord {
    /// The file as it is; the node decompresses it.
    #[default]
    Compressed,
    /// Decompressed: more to copy, nothing to decompress, no KASLR.
    Decompressed,
}

impl From<LayoutWord> for Payload {
    fn from(word: LayoutWord) -> Self {
        match word {
            LayoutWord::Compressed => Self::Compressed,
            LayoutWord::Decompressed => Self::Decompressed,
        }
    }
}

/// A node to start.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(extend("not" = {"required": ["cpus", "cpu_list"]})))]
#[serde(deny_unknown_fields)]
pub(super) struct NodeTable {
    /// Image to start it from: one of this file, or one that is resident already.
    #[cfg_attr(test, schemars(with = "Written<Name>"))]
    pub(super) image: Key<Name>,
    /// Number of cores; 1 by default.
    #[cfg_attr(test, schemars(with = "Option<u32>", range(min = 1, max = 256)))]
    pub(super) cpus: Option<Spanned<u32>>,
    /// Cores by number, such as 2,4-6; the first boots.
    #[cfg_attr(test, schemars(with = "Option<Written<CpuList>>"))]
    pub(super) cpu_list: Option<Key<CpuList>>,
    /// Maximum number of cores, including those added later.
    #[cfg_attr(test, schemars(with = "Option<u32>", range(min = 1, max = 256)))]
    pub(super) max_cpus: Option<Spanned<u32>>,
    /// Amount of memory, and where; several add up. 512M by default.
    #[cfg_attr(test, schemars(with = "Option<OneOrMany<Written<MemorySpec>>>"))]
    pub(super) memory: Option<Spanned<OneOrMany<Written<MemorySpec>>>>,
    /// Text to append to the image's kernel command line.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) append: Option<Spanned<String>>,
    /// PCI functions to pass through, such as 0000:01:00.0: one or a list.
    #[cfg_attr(test, schemars(with = "Option<OneOrMany<Written<PciAddress>>>"))]
    pub(super) device: Option<Spanned<OneOrMany<Written<PciAddress>>>>,
    /// Pass them through even if the base needs them: its disk, its only network.
    #[serde(default)]
    pub(super) force_device: bool,
    /// Root file system: a folder of this system, a file with an EROFS image, or a file or block
    /// device with an ext4 file system. Relative to the file's folder; for nodes of an image with
    /// an agent.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub(super) rootfs: Option<Spanned<PathBuf>>,
    /// Keep changes to the root file system in the node's memory only; they are lost with the node.
    #[cfg_attr(test, schemars(with = "Option<bool>"))]
    pub(super) overlay: Option<Spanned<bool>>,
    /// Files or block devices of this system to attach as disks, `,ro` after one makes it
    /// read-only: one or a list. Relative to the file's folder.
    #[cfg_attr(test, schemars(with = "Option<OneOrMany<Written<DiskSpec>>>"))]
    pub(super) disk: Option<Spanned<OneOrMany<Written<DiskSpec>>>>,
    /// Connect it to the network of nodes and base; for nodes of an image with an agent.
    #[serde(default)]
    pub(super) network: bool,
    /// Its IP address there; assigned by default.
    #[cfg_attr(test, schemars(with = "Option<Written<Ipv4Addr>>"))]
    pub(super) ip: Option<Key<Ipv4Addr>>,
    /// TCP ports of this system that are forwarded to ports of the node, as 8080:80: one or a list.
    #[cfg_attr(test, schemars(with = "Option<OneOrMany<Written<Publish>>>"))]
    pub(super) publish: Option<Spanned<OneOrMany<Written<Publish>>>>,
    /// Program to run, and its arguments: when it exits, the node stops. For nodes of an image with
    /// an agent.
    #[cfg_attr(test, schemars(with = "Option<Vec<String>>", length(min = 1)))]
    pub(super) program: Option<Spanned<Vec<String>>>,
    /// Keep a dump of its memory when it crashes or is stopped as hanging.
    #[serde(default)]
    pub(super) dump_on_crash: bool,
    /// Restart policy: no, on-failure[:N] (crashed or hung; at most N times), always.
    #[cfg_attr(test, schemars(with = "Option<Written<Restart>>"))]
    pub(super) restart: Option<Key<Restart>>,
    /// Action when its first core stops handling interrupts.
    #[serde(default)]
    pub(super) on_hang: OnHang,
    /// Do not start it again when it reboots.
    #[serde(default)]
    pub(super) no_reboot: bool,
    /// Nodes of this file that must be ready before this one is started.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "Vec<Written<Name>>"))]
    pub(super) after: Vec<Key<Name>>,
    /// What marks it as ready; by default it is as soon as its kernel runs.
    pub(super) ready: Option<ReadyTable>,
}

/// The mark of a node that is ready.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ReadyTable {
    /// Text that a line of its kernel log contains once it is ready.
    #[cfg_attr(test, schemars(with = "String"))]
    pub(super) log: Spanned<String>,
    /// Seconds after its start within which it must be ready; 60 by default.
    #[serde(default = "ready_timeout_s")]
    pub(super) timeout_s: u32,
}

fn ready_timeout_s() -> u32 {
    60
}

impl File {
    /// Reads a file's text.
    ///
    /// # Errors
    /// The first error, and where it is.
    pub(super) fn parse(source: &Source) -> Result<Self, Diagnostic> {
        toml::from_str(&source.text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            source.diagnostic(span, error.message(), hint(error.message()))
        })
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

/// A value that is parsed from a string, and its place in the file.
pub(super) type Key<T> = Spanned<Written<T>>;

/// A value that is parsed from a string.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Written<T>(pub(super) T);

// With a visitor, so that the deserializer knows where the error is.
impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(WrittenVisitor(PhantomData))
    }
}

struct WrittenVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for WrittenVisitor<T> {
    type Value = Written<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map(Written).map_err(E::custom)
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug)]
pub(super) struct OneOrMany<T>(pub(super) Vec<T>);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for OneOrMany<Written<T>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

struct OneOrManyVisitor<T>(PhantomData<T>);

impl<'de, T: FromStr<Err: fmt::Display>> Visitor<'de> for OneOrManyVisitor<T> {
    type Value = OneOrMany<Written<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        let one = WrittenVisitor(PhantomData).visit_str(text)?;
        Ok(OneOrMany(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut many = Vec::new();
        while let Some(one) = list.next_element()? {
            many.push(one);
        }
        Ok(OneOrMany(many))
    }
}
