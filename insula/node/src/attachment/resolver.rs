//! How names are resolved, on the base and by the nodes on its network.

use std::net::{IpAddr, Ipv4Addr};

use insula_agent::network::Network;
use insula_agent::options::Resolver;
use insula_base::root::Root;

/// The base's resolver, and the servers of systemd-resolved where that file names only itself.
const FILE: &str = "/etc/resolv.conf";
const SERVERS_OF_SYSTEMD: &str = "/run/systemd/resolve/resolv.conf";
/// Sockets of programs that receive packets for any address of the base (proc(5)): address and port in
/// hexadecimal digits.
const SOCKETS: [(&str, &str); 2] = [
    ("/proc/net/udp", "00000000:0035"),
    ("/proc/net/udp6", "00000000000000000000000000000000:0035"),
];

/// A file resolv.conf(5).
#[derive(Debug, Default)]
struct Configuration {
    servers: Vec<IpAddr>,
    search: Vec<String>,
}

/// The name servers of the base itself, in their order.
#[must_use]
pub fn nameservers(root: &Root) -> Vec<IpAddr> {
    read(root, FILE).servers
}

/// How the nodes of a network resolve names: by its name server, or, where another one of the base has its
/// port, by those of the base that nodes reach.
#[must_use]
pub(crate) fn resolver(root: &Root, network: Network) -> Resolver {
    let base = read(root, FILE);
    let search = base.search;
    if !port_is_taken(root) {
        let nameservers = vec![network.base()];
        return Resolver {
            nameservers,
            search,
        };
    }
    let files = [base.servers, read(root, SERVERS_OF_SYSTEMD).servers];
    let mut reached = files.iter().map(|servers| reached(servers));
    let nameservers = reached.find(|servers| !servers.is_empty());
    Resolver {
        nameservers: nameservers.unwrap_or_default(),
        search,
    }
}

/// Those that a node reaches: its own loopback interface has no server, and there is no way to IPv6.
fn reached(servers: &[IpAddr]) -> Vec<Ipv4Addr> {
    let reached = servers.iter().filter_map(|server| match server {
        IpAddr::V4(server) if !server.is_loopback() => Some(*server),
        _ => None,
    });
    reached.collect()
}

/// Whether a program receives all that comes to the port of name servers.
fn port_is_taken(root: &Root) -> bool {
    SOCKETS.iter().any(|(file, any)| {
        let text = root.text(file).unwrap_or_default();
        let mut local = text
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().nth(1));
        local.any(|local| local == *any)
    })
}

fn read(root: &Root, file: &str) -> Configuration {
    let mut configuration = Configuration::default();
    for line in root.text(file).unwrap_or_default().lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => {
                let server = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                configuration.servers.extend(server);
            }
            // The last one counts.
            Some("search" | "domain") => {
                configuration.search = words.map(str::to_owned).collect();
            }
            _ => {}
        }
    }
    configuration
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    const NETWORK: Network = Network::new(10, 79);
    const SYSTEMD: (&str, &str) = (FILE, "nameserver 127.0.0.53\noptions edns0\nsearch lan\n");
    const FREE: (&str, &str) = (
        "/proc/net/udp",
        "  sl  local_address rem_address\n  1: 0100007F:0035 00000000:0000 07\n",
    );
    const TAKEN: (&str, &str) = (
        "/proc/net/udp6",
        "  sl  local_address\n  1: 00000000000000000000000000000000:0035 0:0000 07\n",
    );

    #[test]
    fn the_networks_own_server_is_asked() {
        let text = "# of the base\nnameserver 192.0.2.1\nnameserver ::1\nnameserver\ndomain old\n\
                    search example.org  lan\n";
        let root = Tree::new(&[(FILE, text), FREE]);
        let expected = Resolver {
            nameservers: vec![NETWORK.base()],
            search: vec!["example.org".into(), "lan".into()],
        };
        assert_eq!(resolver(&root.root(), NETWORK), expected);
        let asked = ["192.0.2.1", "::1"].map(|address| address.parse::<IpAddr>().unwrap());
        assert_eq!(nameservers(&root.root()), asked);
    }

    #[test]
    fn servers_that_nodes_reach_are_asked_where_the_port_is_taken() {
        let direct = Tree::new(&[(FILE, "nameserver 192.0.2.1\nnameserver ::1"), TAKEN]);
        let found = |tree: &Tree| resolver(&tree.root(), NETWORK).nameservers;
        assert_eq!(found(&direct), [Ipv4Addr::new(192, 0, 2, 1)]);
        let alone = Tree::new(&[SYSTEMD, TAKEN]);
        assert!(found(&alone).is_empty());
        let upstream = (SERVERS_OF_SYSTEMD, "nameserver 192.0.2.3\n");
        let systemd = Tree::new(&[SYSTEMD, TAKEN, upstream]);
        assert_eq!(found(&systemd), [Ipv4Addr::new(192, 0, 2, 3)]);
        assert_eq!(resolver(&systemd.root(), NETWORK).search, ["lan"]);
    }
}
