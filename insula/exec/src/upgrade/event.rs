//! What an upgrade tells while it goes on.

use std::time::Duration;

use insula_base::units::CpuList;
use insula_driver::name::Name;
use serde::{Serialize, Serializer};

use crate::container::MovedContainer;

/// Is told each step once it is made.
pub type Observer<'a> = &'a dyn Fn(&UpgradeEvent<'_>);

/// A step that was made.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum UpgradeEvent<'a> {
    /// An earlier upgrade that was interrupted is undone, or completed, first.
    Earlier {
        /// The node beside that it has left.
        node: &'a Name,
    },
    /// The new node was started.
    Started {
        /// Its name.
        node: &'a Name,
        /// Its cores.
        cpus: &'a CpuList,
    },
    /// The new node's agent answers.
    Ready {
        /// Its name.
        node: &'a Name,
        /// Time since it was started.
        #[serde(rename = "after_ns", serialize_with = "as_ns")]
        #[cfg_attr(feature = "schemars", schemars(with = "u64"))]
        after: Duration,
    },
    /// A container was moved.
    Moved {
        /// Its name.
        container: &'a Name,
        /// The node on which it is now.
        node: &'a Name,
        /// How it was moved.
        #[serde(flatten)]
        moved: MovedContainer,
    },
    /// The nodes have exchanged their names.
    Named {
        /// The new node's name.
        node: &'a Name,
        /// The old one's.
        old: &'a Name,
    },
    /// Something failed: all is undone from now on.
    Failed {
        /// What.
        error: &'a str,
    },
    /// A container has ended with the node on which it was.
    Lost {
        /// Its name.
        container: &'a Name,
        /// The node.
        node: &'a Name,
    },
    /// A node was stopped.
    Stopped {
        /// Its name.
        node: &'a Name,
        /// Whether it did not power off in time, and was killed.
        by_force: bool,
    },
    /// A node was removed.
    Removed {
        /// Its name.
        node: &'a Name,
    },
}

fn as_ns<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
