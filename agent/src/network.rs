//! The network of nodes and base, as both sides know it.
//!
//! A node's address is told by its network card: the last four bytes of the card's own address are
//! the node's. So it needs to be told nowhere else, and no two can have the same by mistake.

use std::net::Ipv4Addr;

/// The base's address, the way to all others.
pub const BASE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// How many bits all addresses have in common.
pub const PREFIX: u8 = 16;
/// How a card's address begins: one that was not given by a maker.
const MARK: [u8; 2] = [0x0a, 0x49];

/// The address of the card of a node that has this address.
#[must_use]
pub fn card(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [MARK[0], MARK[1], a, b, c, d]
}

/// The address of a node whose card has this one; `None` if it is another card.
#[must_use]
pub fn address(card: [u8; 6]) -> Option<Ipv4Addr> {
    let [first, second, a, b, c, d] = card;
    ([first, second] == MARK).then(|| Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_tells_an_address() {
        let node = Ipv4Addr::new(10, 78, 1, 9);
        assert_eq!(address(card(node)), Some(node));
        assert_eq!(address([0x52, 0x54, 0, 1, 2, 3]), None);
    }
}
