//! Which network the nodes of this base have: one that hides no other of the base.

use std::net::Ipv4Addr;

use insula_agent::network::{Network, PREFIX};
use insula_base::error::Error;
use insula_base::root::Root;

use super::network::BRIDGE;

/// Networks that nodes can have, by preference.
pub(super) const NETWORKS: [Network; 32] = {
    let mut networks = [Network::new(10, 78); 32];
    let mut index = 0;
    while index < networks.len() {
        networks[index] = Network::new(10, 78 + index as u8);
        index += 1;
    }
    networks
};
/// The base's routes, with addresses in its byte order (proc(5)).
const ROUTES: &str = "/proc/net/route";

/// A route of the base.
#[derive(Clone, Copy, Debug)]
struct Route<'a> {
    interface: &'a str,
    target: u32,
    mask: u32,
}

/// Returns the network of nodes and containers: that of `addresses`, which are those of nodes, or of the bridge. If there is
/// neither, the one of the address that is wanted, or the first that hides no other network of the base.
///
/// # Errors
/// When it would hide one, or the wanted address is of another; nothing was touched.
pub(crate) fn network(
    root: &Root,
    addresses: impl IntoIterator<Item = Ipv4Addr>,
    wanted: Option<Ipv4Addr>,
) -> Result<Network, Error> {
    let text = root.text(ROUTES).unwrap_or_default();
    let routes: Vec<_> = text.lines().skip(1).filter_map(Route::of).collect();
    let mut bridge = routes.iter().filter(|route| route.interface == BRIDGE);
    let of_bridge = || bridge.next().map(|route| route.target.into());
    let used = addresses.into_iter().next().or_else(of_bridge);
    let hidden = |network| routes.iter().find(|route| route.is_within(network));
    let network = match (used.map(Network::of), wanted) {
        (Some(used), Some(wanted)) if !used.contains(wanted) => return Err(another(used, wanted)),
        (Some(network), _) => network,
        (None, Some(wanted)) => Network::of(wanted),
        (None, None) => {
            let mut networks = NETWORKS.into_iter();
            let free = networks.find(|network| hidden(*network).is_none());
            free.unwrap_or(NETWORKS[0])
        }
    };
    match hidden(network) {
        None => Ok(network),
        Some(route) => Err(hides(network, route)),
    }
}

impl<'a> Route<'a> {
    /// Reads a line.
    fn of(line: &'a str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let address = |at: usize| {
            let number = u32::from_str_radix(words.get(at)?, 16).ok()?;
            Some(u32::from_be(number))
        };
        Some(Self {
            interface: words.first()?,
            target: address(1)?,
            mask: address(7)?,
        })
    }

    /// Whether it leads elsewhere to addresses of that network only: they would not be reached any more. One that leads to more,
    /// such as all of `10.0.0.0/8`, is another matter: the rest of it still is.
    fn is_within(&self, network: Network) -> bool {
        let nodes = u32::MAX << (32 - u32::from(PREFIX));
        self.interface != BRIDGE
            && self.mask & nodes == nodes
            && network.contains(Ipv4Addr::from(self.target))
    }
}

fn hides(network: Network, route: &Route<'_>) -> Error {
    let Route {
        interface, target, ..
    } = route;
    let other = format!("{}/{}", Ipv4Addr::from(*target), route.mask.leading_ones());
    let what = format!(
        "the network of nodes, {network}, would hide {other}, which this system reaches by {interface}"
    );
    Error::new(what).untouched().hint(
        "remove all nodes with a network, so that the next has another one; or start the node without --network and \
         --publish",
    )
}

fn another(used: Network, wanted: Ipv4Addr) -> Error {
    Error::new(format!(
        "the address {wanted} is not of the network {used}, which nodes and containers have now"
    ))
    .untouched()
    .about("ip")
    .hint("request an address of that network, or none to have one assigned")
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn chosen(
        routes: &[String],
        addresses: &[&str],
        wanted: Option<&str>,
    ) -> Result<String, String> {
        let head =
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let tree = Tree::new(&[(ROUTES, &format!("{head}{}", routes.concat()))]);
        let address = |text: &&str| text.parse::<Ipv4Addr>().unwrap();
        let wanted = wanted.as_ref().map(address);
        let chosen = network(&tree.root(), addresses.iter().map(address), wanted);
        chosen
            .map(|network| network.to_string())
            .map_err(|error| error.to_string())
    }

    fn line(interface: &str, target: [u8; 4], prefix: u32) -> String {
        let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or_default();
        let [target, mask] =
            [u32::from_be_bytes(target), mask].map(|number| format!("{:08X}", number.to_be()));
        format!("{interface}\t{target}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n")
    }

    #[test]
    fn the_first_network_is_chosen_that_hides_no_other() {
        let usual = [
            line("eth0", [0, 0, 0, 0], 0),
            line("eth0", [10, 0, 0, 0], 8),
            line("eth1", [10, 110, 0, 0], 16),
        ];
        assert_eq!(chosen(&usual, &[], None), Ok("10.78.0.0/16".into()));
        assert_eq!(chosen(&[], &[], None), Ok("10.78.0.0/16".into()));
        let odd = ["nothing that is known\n".into()];
        assert_eq!(chosen(&odd, &[], None), Ok("10.78.0.0/16".into()));
        let taken = [
            line("tun0", [10, 78, 5, 0], 24),
            line("tun0", [10, 79, 0, 9], 32),
            line("eth1", [10, 80, 0, 0], 16),
        ];
        assert_eq!(chosen(&taken, &[], None), Ok("10.81.0.0/16".into()));
        let all: Vec<_> = (78..110)
            .map(|second| line("tun0", [10, second, 0, 0], 16))
            .collect();
        assert!(chosen(&all, &[], None).unwrap_err().contains("tun0"));
    }

    #[test]
    fn nodes_and_bridge_keep_theirs() {
        let bridge = [line(BRIDGE, [10, 82, 0, 0], 16)];
        assert_eq!(chosen(&bridge, &[], None), Ok("10.82.0.0/16".into()));
        let of_nodes = chosen(&[], &["10.83.1.0", "10.83.1.1"], None);
        assert_eq!(of_nodes, Ok("10.83.0.0/16".into()));
        let late = [line("tun0", [10, 83, 7, 0], 24)];
        let refused = chosen(&late, &["10.83.1.0"], None).unwrap_err();
        assert!(refused.contains("10.83.7.0/24") && refused.contains("tun0"));
    }

    #[test]
    fn a_wanted_address_decides_while_there_is_no_network() {
        let wanted = |addresses: &[&str]| chosen(&[], addresses, Some("10.90.0.7"));
        assert_eq!(wanted(&[]), Ok("10.90.0.0/16".into()));
        assert_eq!(wanted(&["10.90.1.0"]), Ok("10.90.0.0/16".into()));
        assert!(wanted(&["10.78.1.0"]).unwrap_err().contains("10.78.0.0/16"));
        let hidden = chosen(&[line("tun0", [10, 90, 0, 0], 16)], &[], Some("10.90.0.7"));
        assert!(hidden.unwrap_err().contains("tun0"));
    }
}
