//! Addresses of nodes, in the network of all nodes and of their sockets.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use insula_agent::network::{BASE_ADDRESS, PREFIX};
use sha2::{Digest, Sha256};

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

/// The network's address.
pub(super) fn network() -> u32 {
    u32::from(BASE_ADDRESS) & !(u32::MAX >> PREFIX)
}

/// The address of a node whose record has none, because another version of insula started it.
#[must_use]
pub(super) fn default_address(id: u32) -> Ipv4Addr {
    nth(id)
}

fn nth(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(network() + FIRST + number % COUNT)
}

/// Chooses an address that is not in `taken` from a hash of the node's name, so a name gets the
/// same address each time unless another node has it. `None` if all are taken.
#[must_use]
pub(crate) fn free_address(name: &str, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let digest = Sha256::digest(name);
    let first = digest.iter().take(4);
    let first = first.fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) % COUNT;
    let mut all = (0..COUNT).map(|number| nth(first + number));
    all.find(|address| !taken.contains(address))
}

/// Addresses that a node can request; they are never assigned by default.
#[must_use]
pub(crate) fn free_addresses() -> RangeInclusive<Ipv4Addr> {
    let base = u32::from(BASE_ADDRESS);
    Ipv4Addr::from(base + 1)..=Ipv4Addr::from(network() + FIRST - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let mut taken = BTreeSet::new();
        let first = free_address("web", &taken).unwrap();
        assert_eq!(free_address("web", &taken), Some(first));
        taken.insert(first);
        let next = free_address("web", &taken).unwrap();
        assert_ne!(next, first);
        taken.extend((0..COUNT).map(nth));
        assert_eq!(taken.len(), COUNT as usize);
        assert_eq!(free_address("web", &taken), None);
        taken.remove(&first);
        assert_eq!(free_address("other", &taken), Some(first));
        assert!(!taken.contains(&BASE_ADDRESS));
        assert!(taken.iter().all(|one| !free_addresses().contains(one)));
        assert_eq!(taken.first().unwrap().to_string(), "10.78.1.0");
        assert_eq!(taken.last().unwrap().to_string(), "10.78.254.255");
    }
}
