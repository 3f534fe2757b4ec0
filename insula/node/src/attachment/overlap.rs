//! Other networks of the base at the addresses of nodes.

use std::net::Ipv4Addr;

use insula_agent::network::PREFIX;
use insula_base::error::Error;
use insula_base::root::Root;

use super::address::network;
use super::network::BRIDGE;

/// The base's routes, with addresses in its byte order (proc(5)).
const ROUTES: &str = "/proc/net/route";

/// Refuses a network to nodes if the base has another one of the same addresses: it would not be reached any more. A network
/// that has more than these, such as all of `10.0.0.0/8`, is another matter: the rest of it still is.
pub(crate) fn check_no_other(root: &Root) -> Result<(), Error> {
    let routes = root.text(ROUTES).unwrap_or_default();
    let others = routes.lines().skip(1).filter_map(route);
    let nodes = mask(PREFIX);
    let own = network();
    let mut overlapping = others.filter(|&(interface, target, bits)| {
        interface != BRIDGE && bits & nodes == nodes && target & nodes == own
    });
    match overlapping.next() {
        None => Ok(()),
        Some((interface, target, bits)) => {
            let network = format!("{}/{}", Ipv4Addr::from(target), bits.leading_ones());
            Err(overlap(interface, &network))
        }
    }
}

/// Interface, address and netmask of a line.
fn route(line: &str) -> Option<(&str, u32, u32)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let address = |at: usize| {
        let number = u32::from_str_radix(words.get(at)?, 16).ok()?;
        Some(u32::from_be(number))
    };
    Some((words.first()?, address(1)?, address(7)?))
}

fn mask(prefix: u8) -> u32 {
    u32::MAX << (32 - u32::from(prefix))
}

fn overlap(interface: &str, other: &str) -> Error {
    let nodes = Ipv4Addr::from(network());
    let what = format!(
        "the network of nodes, {nodes}/{PREFIX}, would hide {other}, which this system reaches by {interface}"
    );
    Error::new(what).untouched().hint(
        "start the node without --network and --publish, or give the other network other addresses",
    )
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn checked(routes: &str) -> Result<(), Error> {
        let head =
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let tree = Tree::new(&[(ROUTES, &format!("{head}{routes}"))]);
        check_no_other(&tree.root())
    }

    fn line(interface: &str, target: [u8; 4], prefix: u8) -> String {
        let hex = |number: u32| format!("{:08X}", number.to_be());
        let (target, bits) = (hex(u32::from_be_bytes(target)), hex(mask_or_none(prefix)));
        format!("{interface}\t{target}\t00000000\t0001\t0\t0\t0\t{bits}\t0\t0\t0\n")
    }

    fn mask_or_none(prefix: u8) -> u32 {
        match prefix {
            0 => 0,
            some => mask(some),
        }
    }

    #[test]
    fn another_network_of_those_addresses_is_refused() {
        let free = [
            line("eth0", [0, 0, 0, 0], 0),
            line("eth0", [10, 0, 0, 0], 8),
            line("eth1", [10, 79, 0, 0], 16),
            line("insula0", [10, 78, 0, 0], 16),
        ];
        assert!(checked(&free.concat()).is_ok());
        assert!(checked("").is_ok() && checked("nothing that is known\n").is_ok());
        for (target, prefix, told) in [
            ([10, 78, 0, 0], 16, "10.78.0.0/16"),
            ([10, 78, 5, 0], 24, "10.78.5.0/24"),
            ([10, 78, 0, 9], 32, "10.78.0.9/32"),
        ] {
            let error = checked(&(free.concat() + &line("tun0", target, prefix)));
            let error = error.unwrap_err().to_string();
            assert!(error.contains(told) && error.contains("tun0"), "{error}");
        }
    }
}
