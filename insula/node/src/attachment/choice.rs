//! Which network the nodes of this base have: one that hides no other of the base.

use std::net::Ipv4Addr;

use insula_agent::network::{Network, PREFIX};
use insula_base::error::Error;
use insula_base::root::Root;

use super::network::{BRIDGE, Subnet, is_bridge};

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
    others: &[Network],
    wanted: Option<Ipv4Addr>,
) -> Result<Network, Error> {
    let of_bridge = || network_of_bridge(root, BRIDGE);
    let used = addresses
        .into_iter()
        .next()
        .map(Network::of)
        .or_else(of_bridge);
    let is_free = |network: &Network| {
        !others.contains(network) && check_hidden(root, *network, BRIDGE).is_ok()
    };
    let network = match (used, wanted) {
        (Some(used), Some(wanted)) if !used.contains(wanted) => return Err(another(used, wanted)),
        (Some(network), _) => network,
        (None, Some(wanted)) => Network::of(wanted),
        (None, None) => {
            let mut networks = NETWORKS.into_iter();
            networks.find(is_free).unwrap_or(NETWORKS[0])
        }
    };
    if others.contains(&network) {
        return Err(is_anothers(network));
    }
    check_hidden(root, network, BRIDGE).map(|()| network)
}

/// The addresses for a network with a name: the wanted ones, or the first that are nobody's. Those that the network
/// of all nodes prefers are left to it.
///
/// # Errors
/// When a network of the base has them; nothing was touched.
pub(crate) fn choose_subnet(
    root: &Root,
    used: &[Network],
    wanted: Option<Subnet>,
) -> Result<Subnet, Error> {
    let check = |network: Network| match used.contains(&network) {
        true => Err(is_anothers(network)),
        false => check_hidden(root, network, ""),
    };
    if let Some(Subnet(wanted)) = wanted {
        return check(wanted)
            .map(|()| Subnet(wanted))
            .map_err(|error| error.about("subnet"));
    }
    let mut networks = NETWORKS[1..].iter();
    let free = networks.find(|network| check(**network).is_ok());
    free.map(|network| Subnet(*network)).ok_or_else(none_free)
}

/// Refuses a network that would hide another one of the base; `bridge` leads to the network itself.
///
/// # Errors
/// What it would hide; nothing was touched.
pub(crate) fn check_hidden(root: &Root, network: Network, bridge: &str) -> Result<(), Error> {
    let text = root.text(ROUTES).unwrap_or_default();
    let mut routes = routes(&text);
    match routes.find(|route| route.interface != bridge && route.is_within(network)) {
        None => Ok(()),
        Some(route) => Err(hides(network, &route)),
    }
}

/// The network of a bridge, if that is there.
#[must_use]
pub fn network_of_bridge(root: &Root, bridge: &str) -> Option<Network> {
    let text = root.text(ROUTES).unwrap_or_default();
    let found = routes(&text).find(|route| route.interface == bridge);
    found.map(|route| Network::of(route.target.into()))
}

/// The bridge of a network, if that is there.
#[must_use]
pub fn bridge_of_network(root: &Root, network: Network) -> Option<String> {
    let text = root.text(ROUTES).unwrap_or_default();
    let is_its =
        |route: &Route<'_>| is_bridge(route.interface) && network.contains(route.target.into());
    routes(&text)
        .find(is_its)
        .map(|route| route.interface.to_owned())
}

fn routes(text: &str) -> impl Iterator<Item = Route<'_>> {
    text.lines().skip(1).filter_map(Route::of)
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

    /// Whether it leads to addresses of that network only: they would not be reached any more. One that leads to more,
    /// such as all of `10.0.0.0/8`, is another matter: the rest of it still is.
    fn is_within(&self, network: Network) -> bool {
        let nodes = u32::MAX << (32 - u32::from(PREFIX));
        self.mask & nodes == nodes && network.contains(Ipv4Addr::from(self.target))
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

fn is_anothers(network: Network) -> Error {
    Error::new(format!(
        "the addresses {network} are those of another network of nodes"
    ))
    .untouched()
    .hint("`insula network ls` lists all networks")
}

fn none_free() -> Error {
    Error::new("all addresses for networks of nodes are in use")
        .untouched()
        .about("subnet")
        .hint(
            "give others, as `--subnet 172.20.0.0/16`, or remove a network: `insula network prune`",
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
        let others = [Network::new(10, 84)];
        let chosen = network(&tree.root(), addresses.iter().map(address), &others, wanted);
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
        let named = chosen(&[], &[], Some("10.84.0.7"));
        assert!(named.unwrap_err().contains("another network of nodes"));
        let hidden = chosen(&[line("tun0", [10, 90, 0, 0], 16)], &[], Some("10.90.0.7"));
        assert!(hidden.unwrap_err().contains("tun0"));
    }

    #[test]
    fn a_named_network_has_addresses_that_nobody_has() {
        let head = "Iface\n";
        let lines = [
            line("insula1", [10, 79, 0, 0], 16),
            line("tun0", [10, 80, 3, 0], 24),
        ];
        let tree = Tree::new(&[(ROUTES, &format!("{head}{}", lines.concat()))]);
        let root = tree.root();
        let choose = |wanted: Option<&str>| {
            let wanted = wanted.map(|text| text.parse().unwrap());
            let chosen = choose_subnet(&root, &[Network::new(10, 81)], wanted);
            chosen.map(|subnet| subnet.to_string())
        };
        assert_eq!(choose(None).unwrap(), "10.82.0.0/16");
        assert_eq!(choose(Some("172.20.0.0/16")).unwrap(), "172.20.0.0/16");
        for taken in ["10.79.0.0/16", "10.80.0.0/16", "10.81.0.0/16"] {
            assert_eq!(choose(Some(taken)).unwrap_err().option, "subnet", "{taken}");
        }
        let network = Network::new(10, 79);
        assert!(check_hidden(&root, network, "insula1").is_ok());
        assert_eq!(network_of_bridge(&root, "insula1"), Some(network));
        assert_eq!(
            bridge_of_network(&root, network).as_deref(),
            Some("insula1")
        );
        assert_eq!(bridge_of_network(&root, Network::new(10, 80)), None);
    }
}
