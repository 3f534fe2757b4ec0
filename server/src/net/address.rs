//! Addresses as requests have them.

use insula_abi::net::NONE;
use nix::errno::Errno;
use smoltcp::wire::{IpAddress, IpEndpoint, IpListenEndpoint, Ipv4Address};

/// Reads an address and a port.
pub(super) fn unpack(word: u64) -> Result<IpEndpoint, Errno> {
    if word >> 48 != 0 {
        return Err(Errno::EINVAL);
    }
    let address = Ipv4Address::from((word >> 16) as u32);
    Ok(IpEndpoint::new(IpAddress::Ipv4(address), word as u16))
}

/// Returns the word for an address and a port.
pub(super) fn pack(endpoint: IpEndpoint) -> u64 {
    let IpAddress::Ipv4(address) = endpoint.addr;
    u64::from(address.to_bits()) << 16 | u64::from(endpoint.port)
}

/// Returns the word for what a socket is bound to.
pub(super) fn pack_bound(endpoint: IpListenEndpoint) -> u64 {
    let address = IpAddress::Ipv4(Ipv4Address::UNSPECIFIED);
    pack(IpEndpoint::new(
        endpoint.addr.unwrap_or(address),
        endpoint.port,
    ))
}

/// Returns the word for a peer, or for none.
pub(super) fn pack_peer(endpoint: Option<IpEndpoint>) -> u64 {
    endpoint.map_or(NONE, pack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back() {
        let word = 0x0a00_020f_1f90;
        let endpoint = unpack(word).unwrap();
        assert_eq!(endpoint.to_string(), "10.0.2.15:8080");
        assert_eq!(pack(endpoint), word);
        assert_eq!(unpack(NONE), Err(Errno::EINVAL));
        assert_eq!(pack_peer(None), NONE);
    }
}
