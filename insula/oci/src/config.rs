//! What is needed of a bundle's `config.json` (OCI runtime specification, `config.md`).
//!
//! Engines leave lists out, or write `null`. What is unknown is ignored here, and kept by
//! [`rewrite`](super::rewrite).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

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
#[serde(default)]
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
}

/// The user of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    #[serde(deserialize_with = "or_default")]
    pub(super) additional_gids: Vec<u32>,
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
#[serde(default)]
pub(super) struct Linux {
    #[serde(deserialize_with = "or_default")]
    pub(super) namespaces: Vec<Namespace>,
    #[serde(deserialize_with = "or_default")]
    pub(super) resources: Resources,
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
}

/// A limit in bytes; none if it is not positive.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MemoryLimit {
    pub(super) limit: Option<i64>,
}

/// A limit of the processor time in each period, both in microseconds.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CpuLimit {
    pub(super) quota: Option<i64>,
    pub(super) period: Option<u64>,
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
