//! Present failures of a node's devices, which the process that serves them leaves in a file.

use std::fs;
use std::path::{Path, PathBuf};

use insula_base::state::RUN;
use serde::{Deserialize, Serialize};

/// Name of the file, in the folder of the node's run.
pub const FILE: &str = "failures";

/// Prefix of the names of the folders of all runs of a node.
#[must_use]
pub fn runs_prefix(id: u32) -> String {
    format!("served-{id}-")
}

/// The folder, below another, of the run of a node that started at this time of the time stamp
/// counter. Another start time means another node or another run.
#[must_use]
pub fn run_folder(below: &Path, id: u32, start_tsc: u64) -> PathBuf {
    below.join(format!("{}{start_tsc:x}", runs_prefix(id)))
}

/// A failed device of a running node. It is retried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct DeviceFailure {
    /// Name of the device.
    pub device: String,
    /// The error.
    pub error: String,
}

/// The failed devices of a node in its run that started at this time of the time stamp counter.
/// Empty if unknown.
#[must_use]
pub fn failures(id: u32, start_tsc: u64) -> Vec<DeviceFailure> {
    read(&run_folder(Path::new(RUN), id, start_tsc))
}

/// Reads them from the folder of a run.
#[must_use]
pub fn read(folder: &Path) -> Vec<DeviceFailure> {
    let bytes = fs::read(folder.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}
