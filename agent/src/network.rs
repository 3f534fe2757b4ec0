//! Addresses on the network of nodes and base.
//!
//! A node's IP address is the last four bytes of its card's MAC address. So it is configured in one
//! place only, and duplicates cannot occur by mistake.

use std::net::Ipv4Addr;

/// The base's address, the default gateway.
pub const BASE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cards_address_holds_the_nodes() {
        let node = Ipv4Addr::new(10, 78, 1, 9);
        assert_eq!(address(card(node)), Some(node));
        assert_eq!(address([0x52, 0x54, 0, 1, 2, 3]), None);
    }
}
