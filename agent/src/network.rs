//! Addresses on the network of nodes and base.
//!
//! A node's IP address is the last four bytes of its card's MAC address. So it is configured in one
//! place only, and duplicates cannot occur by mistake.

use std::fmt;
use std::net::Ipv4Addr;

/// Length of the network prefix in bits.
pub const PREFIX: u8 = 16;
/// First bytes of a card's MAC address, locally administered.
const MARK: [u8; 2] = [0x0a, 0x49];

/// The MAC address of the card of the node with this address.
#[must_use]
pub fn card(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [MARK[0], MARK[1], a, b, c, d]
}

/// The address of the node whose card has this MAC address; `None` for other cards.
#[must_use]
pub fn address(card: [u8; 6]) -> Option<Ipv4Addr> {
    let [first, second, a, b, c, d] = card;
    ([first, second] == MARK).then(|| Ipv4Addr::new(a, b, c, d))
}

/// The network of nodes and base: the addresses that begin with the same two bytes. Each base has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network([u8; 2]);

impl Network {
    /// Returns the network whose addresses begin with these bytes.
    #[must_use]
    pub const fn new(first: u8, second: u8) -> Self {
        Self([first, second])
    }

    /// Returns the network of an address.
    #[must_use]
    pub const fn of(address: Ipv4Addr) -> Self {
        let [first, second, ..] = address.octets();
        Self([first, second])
    }

    /// Returns the base's address, which is the nodes' default gateway and name server.
    #[must_use]
    pub fn base(self) -> Ipv4Addr {
        self.nth(1)
    }

    /// Returns the address of a number: its last two bytes.
    #[must_use]
    pub fn nth(self, number: u16) -> Ipv4Addr {
        let Self([first, second]) = self;
        let [third, fourth] = number.to_be_bytes();
        Ipv4Addr::new(first, second, third, fourth)
    }

    /// Whether an address is one of it.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        Self::of(address) == self
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{PREFIX}", self.nth(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cards_address_holds_the_nodes() {
        let node = Ipv4Addr::new(10, 78, 1, 9);
        assert_eq!(address(card(node)), Some(node));
        assert_eq!(address([0x52, 0x54, 0, 1, 2, 3]), None);
    }

    #[test]
    fn a_network_is_that_of_each_of_its_addresses() {
        let network = Network::of(Ipv4Addr::new(10, 79, 255, 3));
        assert_eq!(network, Network::new(10, 79));
        assert_eq!(network.to_string(), "10.79.0.0/16");
        assert_eq!(network.base(), Ipv4Addr::new(10, 79, 0, 1));
        assert_eq!(network.nth(0xff02), Ipv4Addr::new(10, 79, 255, 2));
        assert!(network.contains(network.base()));
        assert!(!network.contains(Ipv4Addr::new(10, 78, 0, 1)));
    }
}
