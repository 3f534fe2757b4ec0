//! The network of a node: its address, and ports of the base that lead to it.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use super::address;
use super::port::Publish;

/// The bridge of nodes and base.
pub const BRIDGE: &str = "insula0";

/// Network configuration of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Networking {
    /// Published ports.
    pub publish: Vec<Publish>,
    /// The requested address, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv4Addr>,
}

impl Networking {
    /// The address of the node with this id.
    #[must_use]
    pub fn address(&self, id: u32) -> Ipv4Addr {
        self.address.unwrap_or_else(|| address::default_address(id))
    }
}
