//! The kernels that have an agent: a node's, and the base's.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use insula_agent::container::ContainerRequest;
use insula_base::error::{Error, Kind};
use insula_driver::Driver;
use insula_driver::name::{Name, NameError};
use insula_node::BASE;
use insula_virtio::Port;
use serde::{Deserialize, Serialize};
use socket2::Socket;

use super::base;
use super::connect::{to_agent, to_agent_at_once};

/// Where programs are run by an agent: `base`, or the name of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(into = "String", try_from = "String")]
pub enum Location {
    /// On the base.
    Base,
    /// In a node.
    Node(Name),
}

impl Location {
    /// The text that stands for it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Base => BASE,
            Self::Node(name) => name.as_str(),
        }
    }

    /// Whether it is a node that was removed, and its containers with it.
    #[must_use]
    pub fn is_removed(&self, driver: &Driver) -> bool {
        self.is_running(driver)
            .is_err_and(|error| error.kind == Kind::NoNode)
    }

    /// Connects to its agent, waiting for a node that boots.
    pub(crate) fn connect(&self, driver: &Driver) -> Result<Socket, Error> {
        match self {
            Self::Base => base::connect(),
            Self::Node(name) => to_agent(driver, name),
        }
    }

    /// Connects to its agent. A node must run already.
    pub(crate) fn connect_at_once(&self, driver: &Driver) -> Result<Socket, Error> {
        match self {
            Self::Base => base::connect(),
            Self::Node(name) => to_agent_at_once(driver, name),
        }
    }

    /// Whether its kernel runs.
    pub(crate) fn is_running(&self, driver: &Driver) -> Result<bool, Error> {
        match self {
            Self::Base => Ok(true),
            Self::Node(name) => Ok(insula_node::find(driver, name)?.is_running()),
        }
    }

    /// The id of the node, unless it was removed.
    pub(crate) fn node_id(&self, driver: &Driver) -> Option<u32> {
        match self {
            Self::Base => None,
            Self::Node(name) => Some(insula_node::find(driver, name).ok()?.info.id),
        }
    }

    /// Where packets for its containers leave the bridge.
    pub(crate) fn port(&self, driver: &Driver) -> Result<Port, Error> {
        match self {
            Self::Base => Ok(Port::Base),
            Self::Node(name) => Ok(Port::Node(insula_node::find(driver, name)?.info.id)),
        }
    }

    /// The release of its kernel; empty if it is not known.
    pub(crate) fn release(&self, driver: &Driver) -> Result<String, Error> {
        match self {
            Self::Base => {
                let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
                Ok(release.trim_end().to_owned())
            }
            Self::Node(name) => {
                let record = insula_node::find(driver, name)?.record;
                Ok(record.map(|record| record.release).unwrap_or_default())
            }
        }
    }

    /// Bytes that a dump there can have at most.
    pub(crate) fn memory_bytes(&self, driver: &Driver) -> Result<u64, Error> {
        match self {
            Self::Base => Ok(u64::MAX),
            Self::Node(name) => Ok(insula_node::find(driver, name)?.info.memory_size),
        }
    }

    /// Its agent, in messages.
    pub(crate) fn agent(&self) -> String {
        match self {
            Self::Base => "the agent of the base".to_owned(),
            Self::Node(name) => format!("the agent of node '{name}'"),
        }
    }

    /// Itself, in messages.
    pub(crate) fn kernel(&self) -> String {
        match self {
            Self::Base => "the base".to_owned(),
            Self::Node(name) => format!("the node '{name}'"),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl From<Name> for Location {
    fn from(name: Name) -> Self {
        match name.as_str() {
            BASE => Self::Base,
            _ => Self::Node(name),
        }
    }
}

impl FromStr for Location {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Name>().map(Self::from)
    }
}

impl TryFrom<String> for Location {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Location> for String {
    fn from(location: Location) -> Self {
        location.to_string()
    }
}

impl PartialEq<Name> for Location {
    fn eq(&self, other: &Name) -> bool {
        matches!(self, Self::Node(name) if name == other)
    }
}

/// A request that starts or restores a container: on the base in this folder as its root.
pub(crate) fn in_root(
    at: &Location,
    rootfs: Option<&Path>,
    request: ContainerRequest,
) -> ContainerRequest {
    match (at, rootfs) {
        (Location::Base, Some(rootfs)) => ContainerRequest::In {
            root: rootfs.as_os_str().as_bytes().to_owned(),
            request: Box::new(request),
        },
        _ => request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_read_back() {
        for (text, location) in [
            ("base", Location::Base),
            ("web", Location::Node("web".parse().unwrap())),
        ] {
            assert_eq!(text.parse(), Ok(location.clone()));
            let json = serde_json::to_string(&location).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<Location>(&json).unwrap(), location);
        }
        assert!("a/b".parse::<Location>().is_err());
        assert!(Location::Base != "base".parse::<Name>().unwrap());
    }
}
