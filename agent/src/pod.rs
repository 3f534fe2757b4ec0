//! Containers that share a node, as those of a pod.

use serde::{Deserialize, Serialize};

use crate::Exec;
use crate::restrictions::Restrictions;
use crate::view::View;

/// Folder of the node's root file system in which the base has the roots of such containers. The agent mounts another file
/// system there, so that the node's programs do not see it.
pub const ROOTS: &str = "run";

/// A container to start in the node's network: that of the node, or one beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodContainer {
    /// Its name, by which further programs [join](crate::ExecAs::container) it.
    pub name: String,
    /// Name of its root in [`ROOTS`], which no other has had: what the node's kernel remembers of that is not of this one.
    /// Empty for the node's root.
    pub root: String,
    /// Its program.
    pub exec: Exec,
    /// User and group of that, `USER[:GROUP[,GROUP]...]`; root if nothing is said.
    pub user: Option<String>,
    /// What it has of its own.
    pub own: OwnNamespaces,
    /// What its program is restricted by.
    pub restrictions: Restrictions,
    /// What it sees of the node's kernel.
    pub view: View,
    /// How much of the node it gets, with all its programs.
    pub share: Share,
}

/// No limit, where there may have been one.
pub const UNLIMITED: u64 = u64::MAX;

/// How much of its node a container gets; all of it where nothing is said, or [`UNLIMITED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Microseconds of processor time, in each period of so many.
    pub processor_time: Option<(u64, u64)>,
    /// Processes.
    pub processes: Option<u64>,
}

/// Namespaces that a container has beside its mounts; in the others it is with the node's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnNamespaces {
    /// One for host names, with this one.
    pub hostname: Option<String>,
    /// One for System V objects and POSIX message queues, with a `/dev/shm`.
    pub ipc: bool,
    /// One for processes.
    pub processes: bool,
}
