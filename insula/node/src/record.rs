//! The node's record, which the module keeps.

use std::path::PathBuf;

use insula_abi as abi;
use insula_base::error::Error;
use insula_image::{LogSource, Payload};
use insula_rules::Rules;
use kimage::Format;
use serde::{Deserialize, Serialize};

use super::{NodeSpec, RootImageRecord};
use crate::attachment::{DiskFile, Networking, Volume};
use crate::policy::{History, Policy};
use crate::spec;

/// The error of a node whose record has another format, without what was left alone.
#[must_use]
pub fn no_record(name: &str) -> Error {
    Error::new(format!("the record of the node '{name}' cannot be read"))
        .hint("it was started by another version of insula: use that one")
}

/// A range of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ChunkRecord {
    /// Physical address of its first byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
}

impl From<abi::Chunk> for ChunkRecord {
    fn from(chunk: abi::Chunk) -> Self {
        Self {
            start: chunk.start,
            size: chunk.size,
        }
    }
}

/// The project file that a node was started by (`insula up`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Described {
    /// The project.
    pub project: String,
    /// The file.
    pub file: PathBuf,
    /// SHA-256 of the node's description in it, in hexadecimal.
    pub digest: String,
}

/// What a node's supervisor acts upon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RestartRecord {
    /// The restart policy.
    pub policy: Policy,
    /// Past restarts.
    pub history: History,
    /// What the node is watched for, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<Rules>,
}

/// What a copy of a node has of the original.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyRecord {
    /// Name of the snapshot.
    pub snapshot: String,
    /// Local APIC ids by which its kernel knows its cores, in their order.
    pub known_cpus: Vec<u32>,
}

/// What a node was started from and how it was laid out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Version of the spec.
    pub version: u32,
    /// What it is to be.
    pub spec: NodeSpec,
    /// The kernel's release (`uname -r`).
    pub release: String,
    /// Format of the kernel.
    pub format: Format,
    /// The kernel's file.
    pub kernel: PathBuf,
    /// The initrd's file.
    pub initrd: Option<PathBuf>,
    /// The form in which its kernel was loaded.
    pub payload: Payload,
    /// The kernel's whole command line.
    pub command_line: String,
    /// The node's part of it, after the image's: the user's, then the agent's options.
    pub append: String,
    /// Local APIC ids of its initial cores.
    pub cpus: Vec<u32>,
    /// Local APIC ids of cores that may be added.
    pub spare_cpus: Vec<u32>,
    /// Of a copy: the snapshot that it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyRecord>,
    /// Its initial memory, by offset in its memory object.
    pub memory: Vec<ChunkRecord>,
    /// Physical load address of its kernel.
    pub kernel_address: u64,
    /// Physical load address of its initrd.
    pub initrd_address: u64,
    /// Physical address of the I/O APIC word with its power button's vector.
    pub power_button: u64,
    /// Physical address of its generation; 0 if it has none.
    #[serde(default)]
    pub generation: u64,
    /// Physical address of its channels.
    pub channels: u64,
    /// Layout of its log.
    pub log: LogSource,
    /// What its supervisor acts upon.
    pub restart: RestartRecord,
    /// The folder of the base that is its root, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// Its disks, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskFile>,
    /// Folders of the base that it has beside its root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// The image in memory that is its root, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_image: Option<RootImageRecord>,
    /// Its network, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Networking>,
    /// Time of its last start, in seconds since 1970.
    pub created_unix_s: u64,
    /// The project file that describes it, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub described: Option<Described>,
}

impl NodeRecord {
    /// Reads a record; `None` if another version of the command wrote it.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<Self> {
        let record = serde_json::from_slice(text).ok();
        record.filter(|record: &Self| record.version == spec::VERSION)
    }

    /// Whether its kernel is Linux.
    #[must_use]
    pub fn is_linux(&self) -> bool {
        self.format != Format::Lwk
    }

    /// Local APIC ids of the cores that its kernel knows, without those it has now.
    #[must_use]
    pub fn room(&self, own: &[u32]) -> Vec<u32> {
        let known = self.cpus.iter().chain(&self.spare_cpus).copied();
        known.filter(|id| !own.contains(id)).collect()
    }
}
