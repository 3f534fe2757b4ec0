//! Addresses of nodes, in the network of all nodes and of their sockets.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use insula_agent::network::Network;
use sha2::{Digest, Sha256};

use super::choice::NETWORKS;

/// First address for nodes without a requested one; those before can be requested.
const FIRST: u32 = 0x100;
/// Number of addresses for nodes without a requested one.
const COUNT: u32 = 0xff00 - FIRST;
/// The first CID of nodes, beyond those of virtual machines.
const CID_FIRST: u32 = 0x4e00_0000;

/// The address of a node's sockets (`svm_cid` of `AF_VSOCK`).
#[must_use]
pub fn cid(node_id: u32) -> u32 {
    CID_FIRST.wrapping_add(node_id)
}

/// The address of a node whose record has none, because another version of insula started it.
#[must_use]
pub(super) fn default_address(id: u32) -> Ipv4Addr {
    nth(NETWORKS[0], id)
}

fn nth(network: Network, number: u32) -> Ipv4Addr {
    network.nth((FIRST + number % COUNT) as u16)
}

/// Chooses an address of a network that is not in `taken` from a hash of the node's name, so a name gets the
/// same address each time unless another node has it. `None` if all are taken.
#[must_use]
pub(crate) fn free_address(
    network: Network,
    name: &str,
    taken: &BTreeSet<Ipv4Addr>,
) -> Option<Ipv4Addr> {
    let digest = Sha256::digest(name);
    let first = digest.iter().take(4);
    let first = first.fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) % COUNT;
    let mut all = (0..COUNT).map(|number| nth(network, first + number));
    all.find(|address| !taken.contains(address))
}

/// Addresses of a network that a node can request; they are never assigned by default.
#[must_use]
pub(crate) fn free_addresses(network: Network) -> RangeInclusive<Ipv4Addr> {
    network.nth(2)..=network.nth(FIRST as u16 - 1)
}

/// Whether a node can request an address, on this network or, if there is none yet, on that of all nodes.
#[must_use]
pub(crate) fn can_be_requested(address: Ipv4Addr, on: Option<Network>) -> bool {
    let network = Network::of(address);
    let is_possible = on.map_or_else(|| NETWORKS.contains(&network), |on| on == network);
    is_possible && free_addresses(network).contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let network = NETWORKS[1];
        let free_address = |name, taken: &_| free_address(network, name, taken);
        let mut taken = BTreeSet::new();
        let first = free_address("web", &taken).unwrap();
        assert_eq!(free_address("web", &taken), Some(first));
        taken.insert(first);
        let next = free_address("web", &taken).unwrap();
        assert_ne!(next, first);
        taken.extend((0..COUNT).map(|number| nth(network, number)));
        assert_eq!(taken.len(), COUNT as usize);
        assert_eq!(free_address("web", &taken), None);
        taken.remove(&first);
        assert_eq!(free_address("other", &taken), Some(first));
        assert!(!taken.contains(&network.base()));
        assert!(
            taken
                .iter()
                .all(|one| !free_addresses(network).contains(one))
        );
        assert_eq!(taken.first().unwrap().to_string(), "10.79.1.0");
        assert_eq!(taken.last().unwrap().to_string(), "10.79.254.255");
    }
}
