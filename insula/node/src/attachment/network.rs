//! The network of a node: its address, and ports of the base that lead to it.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use insula_agent::network::{Network, PREFIX};
use insula_base::serde_as_text;
use insula_driver::name::Name;
use serde::{Deserialize, Serialize};

use super::address;
use super::port::Publish;
use crate::spec::{NetworkSpec, is_default};

/// The bridge of the network of all nodes.
pub const BRIDGE: &str = "insula0";

/// Whether an interface of the base is a bridge of nodes, by its name.
#[must_use]
pub fn is_bridge(interface: &str) -> bool {
    let number = interface.strip_prefix("insula").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Network configuration of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networking {
    /// Published ports.
    pub publish: Vec<Publish>,
    /// The requested address, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
    /// How long the base looks for packets before it waits, in microseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub poll_us: u32,
    /// Its network, if that is not the one of all nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<NamedNetwork>,
}

/// A network with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedNetwork {
    /// Its name.
    pub name: Name,
    /// Its addresses.
    pub subnet: Subnet,
    /// Its bridge.
    pub bridge: String,
    /// Whether it has no way to other hosts.
    pub internal: bool,
}

/// A network as the base has it while a node is on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its bridge.
    pub bridge: String,
    /// Its addresses.
    pub network: Network,
    /// Whether it has no way to other hosts.
    pub internal: bool,
}

impl Link {
    /// The network of all nodes.
    #[must_use]
    pub fn of_all(network: Network) -> Self {
        Self {
            bridge: BRIDGE.to_owned(),
            network,
            internal: false,
        }
    }
}

impl Networking {
    /// The address of the node with this id.
    #[must_use]
    pub fn address(&self, id: u32) -> Ipv4Addr {
        self.address.unwrap_or_else(|| address::default_address(id))
    }

    /// How it is asked for.
    #[must_use]
    pub fn spec(&self) -> NetworkSpec {
        match &self.named {
            Some(named) => NetworkSpec::Named(named.name.clone()),
            None => NetworkSpec::Default,
        }
    }

    /// The network of the node with this id.
    #[must_use]
    pub fn link(&self, id: u32) -> Link {
        match &self.named {
            Some(named) => Link {
                bridge: named.bridge.clone(),
                network: named.subnet.0,
                internal: named.internal,
            },
            None => Link::of_all(Network::of(self.address(id))),
        }
    }
}

/// The addresses of a network, as `10.200.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet(pub Network);

/// The text is not the addresses of a network that nodes can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected private addresses of a prefix of 16 bits, such as 10.200.0.0/16 or 172.20.0.0/16"
)]
pub struct SubnetError;

impl FromStr for Subnet {
    type Err = SubnetError;

    fn from_str(text: &str) -> Result<Self, SubnetError> {
        let (first, prefix) = text.split_once('/').ok_or(SubnetError)?;
        let address: Ipv4Addr = first.parse().map_err(|_| SubnetError)?;
        let network = Network::of(address);
        let is_whole = prefix.parse() == Ok(PREFIX) && network.nth(0) == address;
        match is_whole && address.is_private() {
            true => Ok(Self(network)),
            false => Err(SubnetError),
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

serde_as_text!(Subnet, "^[0-9]{1,3}\\.[0-9]{1,3}\\.0\\.0/16$");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_have_numbers() {
        for (name, is) in [
            ("insula0", true),
            ("insula12", true),
            ("insula", false),
            ("insula-3", false),
        ] {
            assert_eq!(is_bridge(name), is, "{name}");
        }
    }

    #[test]
    fn subnets_are_private_and_whole() {
        for text in [
            "10.0.0.0/16",
            "10.200.0.0/16",
            "172.31.0.0/16",
            "192.168.0.0/16",
        ] {
            assert_eq!(text.parse::<Subnet>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "10.200.0.0",
            "10.200.0.0/24",
            "10.200.1.0/16",
            "172.32.0.0/16",
            "8.8.0.0/16",
            "fd00::/16",
        ] {
            assert_eq!(text.parse::<Subnet>(), Err(SubnetError), "{text}");
        }
    }
}
