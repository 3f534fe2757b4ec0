//! What is kept beside a node.

use std::path::PathBuf;

use insula_abi as abi;
use kimage::Format;
use serde::{Deserialize, Serialize};

use super::RootImageRecord;
use crate::image::{LogSource, Payload};
use crate::policy::{History, Policy};
use crate::virtio::{DiskFile, Networking};

/// A stretch of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkRecord {
    /// Physical address of its first byte.
    pub start: u64,
    /// Its bytes.
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

/// Whose description a node was started by (`insula up`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The project.
    pub project: String,
    /// The file.
    pub file: PathBuf,
    /// SHA-256 of what it says of the node, in hexadecimal.
    pub digest: String,
    /// The nodes that this one came after.
    pub after: Vec<String>,
}

/// What becomes of a node when it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeRecord {
    /// What its user wants.
    pub policy: Policy,
    /// What is remembered of its ends.
    pub history: History,
}

/// What a node was started from and how it was laid out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The image, if it was started from one.
    pub image: Option<String>,
    /// The kernel's release (`uname -r`).
    pub release: String,
    /// What kind of kernel it is; none in records of before this was recorded.
    #[serde(default)]
    pub format: Option<Format>,
    /// The kernel's file.
    pub kernel: PathBuf,
    /// The initrd's file.
    pub initrd: Option<PathBuf>,
    /// The form in which its kernel was loaded.
    pub payload: Payload,
    /// The whole command line that its kernel was given.
    pub command_line: String,
    /// Its user's own part of that, after the image's.
    pub append: String,
    /// Local APIC ids of the cores that it was started with.
    #[serde(default)]
    pub cpus: Vec<u32>,
    /// Local APIC ids of cores that it may get later.
    pub spare_cpus: Vec<u32>,
    /// The memory that it was started with, in order of offset in its memory object.
    pub memory: Vec<ChunkRecord>,
    /// Where its kernel was loaded, a physical address.
    pub kernel_address: u64,
    /// Where its initrd was loaded, a physical address.
    pub initrd_address: u64,
    /// The word in its memory that tells how to press its power button.
    pub power_button: u64,
    /// Physical address of its channels; 0 in records of before there were any.
    #[serde(default)]
    pub channels: u64,
    /// How its log is read.
    pub log: LogSource,
    /// What becomes of it when it ends.
    pub life: LifeRecord,
    /// The folder of the base that is its root, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// Its disks, in the order in which it has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<DiskFile>,
    /// The image in memory that is its root, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_image: Option<RootImageRecord>,
    /// Its network, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Networking>,
    /// Whether a dump is to be kept if it crashes.
    #[serde(default)]
    pub dump_on_crash: bool,
    /// When it was last started, in seconds since 1970.
    pub created_unix_s: u64,
    /// By which file it is described, if it is by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub described: Option<Described>,
}

impl NodeRecord {
    /// Whether its kernel is a Linux.
    #[must_use]
    pub fn is_linux(&self) -> bool {
        self.format.is_some_and(|format| format != Format::Lwk)
    }

    /// Local APIC ids of the cores that its kernel knows of, but for those that are its own now.
    #[must_use]
    pub fn room(&self, own: &[u32]) -> Vec<u32> {
        let known = self.cpus.iter().chain(&self.spare_cpus).copied();
        known.filter(|id| !own.contains(id)).collect()
    }
}
