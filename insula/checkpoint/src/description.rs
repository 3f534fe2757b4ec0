//! What Insula knows of a container beside its images.

use std::net::Ipv4Addr;

use insula_agent::container::is_name;
use insula_agent::processor::Processor;
use serde::{Deserialize, Serialize};

use super::folder::Folder;
use super::{CheckpointError, DESCRIPTION};

/// Version of the description: another one is refused.
const VERSION: u32 = 1;
/// Most bytes of the file.
const BYTES_MAX: u64 = 4 << 20;

/// A container of which there are images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Version of this description.
    pub version: u32,
    /// The container's name.
    pub name: String,
    /// Its address, if it was on the network of nodes and base.
    pub address: Option<Ipv4Addr>,
    /// Ports of the base that led to it, as `127.0.0.1:8080:80`.
    pub publish: Vec<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Time of its start, in seconds since 1970.
    pub created_unix_s: u64,
    /// Time at which it was dumped, in seconds since 1970.
    pub dumped_unix_s: u64,
    /// Release of the kernel on which it was.
    pub kernel: String,
    /// Key of its output in the images, as `pipe:[123]`: plain CRIU restores it with
    /// `--inherit-fd fd[1]:pipe:[123]`.
    pub output: String,
    /// What its programs may use of the processor.
    pub processor: Processor,
}

impl Description {
    /// The version that this Insula writes.
    #[must_use]
    pub fn version() -> u32 {
        VERSION
    }

    pub(super) fn read(folder: &Folder) -> Result<Self, CheckpointError> {
        let content = folder.read(DESCRIPTION, BYTES_MAX)?;
        let whole: serde_json::Value =
            serde_json::from_slice(&content).map_err(|error| damaged(&error))?;
        match whole["version"].as_u64() {
            Some(version) if version == u64::from(VERSION) => {}
            version => return Err(other_version(version)),
        }
        let read: Self = serde_json::from_value(whole).map_err(|error| damaged(&error))?;
        match is_name(&read.name) && is_pipe(&read.output) {
            true => Ok(read),
            false => Err(CheckpointError::Damaged {
                name: DESCRIPTION.to_owned(),
                fault: "its name or its output is none".to_owned(),
            }),
        }
    }

    pub(super) fn write(&self, folder: &Folder) -> Result<(), CheckpointError> {
        let mut content = serde_json::to_vec_pretty(self).map_err(|error| damaged(&error))?;
        content.push(b'\n');
        folder.write(DESCRIPTION, &content)
    }
}

/// Whether a text is the name of a pipe, as `/proc/PID/fd` shows it.
#[must_use]
pub fn is_pipe(text: &str) -> bool {
    let number = text
        .strip_prefix("pipe:[")
        .and_then(|rest| rest.strip_suffix(']'));
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

fn damaged(error: &serde_json::Error) -> CheckpointError {
    CheckpointError::Damaged {
        name: DESCRIPTION.to_owned(),
        fault: error.to_string(),
    }
}

fn other_version(version: Option<u64>) -> CheckpointError {
    let version = version.map_or_else(|| "no version".to_owned(), |one| format!("version {one}"));
    CheckpointError::Unsupported(format!(
        "{DESCRIPTION} has {version}, where this Insula knows {VERSION}"
    ))
}
