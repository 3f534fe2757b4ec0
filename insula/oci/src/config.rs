//! What is needed of a bundle's `config.json` (OCI runtime specification, `config.md`).
//!
//! Engines leave lists out, or write `null`. What is unknown is ignored here, and kept by
//! [`rewrite`](super::rewrite).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::hooks::Hooks;

/// A container's configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) root: Option<Root>,
    #[serde(deserialize_with = "or_default")]
    pub(super) hostname: String,
    pub(super) process: Option<Process>,
    #[serde(deserialize_with = "or_default")]
    pub(super) mounts: Vec<Mount>,
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) hooks: Hooks,
    #[serde(deserialize_with = "or_default")]
    pub(super) linux: Linux,
    #[serde(deserialize_with = "or_default")]
    pub(super) vm: Vm,
}

/// The container's root.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Root {
    /// Relative paths begin at the bundle.
    pub(super) path: PathBuf,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) readonly: bool,
}

/// A process of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Process {
    #[serde(deserialize_with = "or_default")]
    pub(super) terminal: bool,
    #[serde(deserialize_with = "or_default")]
    pub(super) user: User,
    #[serde(deserialize_with = "or_default")]
    pub(super) args: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) cwd: PathBuf,
    pub(super) capabilities: Option<Capabilities>,
    #[serde(deserialize_with = "or_default")]
    pub(super) rlimits: Vec<Rlimit>,
    #[serde(deserialize_with = "or_default")]
    pub(super) no_new_privileges: bool,
    pub(super) oom_score_adj: Option<i32>,
}

/// Capability of who may mount.
const MOUNTING: &str = "CAP_SYS_ADMIN";

impl Process {
    /// Whether it, or what it executes, may mount something.
    pub(super) fn may_mount(&self) -> bool {
        let capabilities = self.capabilities.as_ref();
        capabilities.is_none_or(|sets| sets.bounding.iter().any(|one| one == MOUNTING))
    }
}

/// Names of capabilities, in the sets of capabilities(7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Capabilities {
    #[serde(deserialize_with = "or_default")]
    pub(super) bounding: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) effective: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) inheritable: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) permitted: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ambient: Vec<String>,
}

/// A resource limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Rlimit {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) soft: u64,
    pub(super) hard: u64,
}

/// The user of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    #[serde(deserialize_with = "or_default")]
    pub(super) additional_gids: Vec<u32>,
    pub(super) umask: Option<u32>,
}

/// A file system that the container has beside its root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Mount {
    pub(super) destination: PathBuf,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) source: PathBuf,
    #[serde(deserialize_with = "or_default")]
    pub(super) options: Vec<String>,
}

/// What concerns Linux.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Linux {
    #[serde(deserialize_with = "or_default")]
    pub(super) namespaces: Vec<Namespace>,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: Resources,
    #[serde(deserialize_with = "or_default")]
    pub(super) devices: Vec<Device>,
    #[serde(deserialize_with = "or_default")]
    pub(super) sysctl: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) masked_paths: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) readonly_paths: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) rootfs_propagation: String,
}

/// A device node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Device {
    pub(super) path: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) major: i64,
    pub(super) minor: i64,
    pub(super) file_mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
}

/// A namespace: a new one, or that of a path.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Namespace {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) path: PathBuf,
}

/// Limits.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Resources {
    #[serde(deserialize_with = "or_default")]
    pub(super) memory: MemoryLimit,
    #[serde(deserialize_with = "or_default")]
    pub(super) cpu: CpuLimit,
    #[serde(deserialize_with = "or_default")]
    pub(super) pids: PidsLimit,
}

/// A limit of the number of processes; none if it is not positive.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PidsLimit {
    pub(super) limit: Option<i64>,
}

/// A limit in bytes; none if it is not positive.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MemoryLimit {
    pub(super) limit: Option<i64>,
}

/// Length of a period of processor time where none is said.
const PERIOD_US: u64 = 100_000;

/// A limit of the processor time in each period, both in microseconds; none if it is not positive.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CpuLimit {
    pub(super) quota: Option<i64>,
    pub(super) period: Option<u64>,
}

impl CpuLimit {
    /// The limit, if one is said, and the period.
    pub(super) fn time(&self) -> Option<(i64, u64)> {
        let period = self.period.filter(|&period| period > 0);
        Some((self.quota?, period.unwrap_or(PERIOD_US)))
    }
}

/// What concerns a container with a kernel of its own (`config-vm.md`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Vm {
    pub(super) kernel: Option<Kernel>,
}

/// That kernel.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Kernel {
    pub(super) path: PathBuf,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) parameters: Vec<String>,
    #[serde(default)]
    pub(super) initrd: Option<PathBuf>,
}

/// The default for `null`.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
