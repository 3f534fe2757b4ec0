//! How the base resolves names, for nodes on its network.

use std::net::Ipv4Addr;

use insula_agent::options::Resolver;
use insula_base::root::Root;

/// Where the base's name servers are, the first that has one counts: where systemd-resolved runs, the usual
/// file names only itself, and the other one its servers.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// The base's name servers, as far as nodes reach them, and its search list (resolv.conf(5)).
#[must_use]
pub(crate) fn resolver(root: &Root) -> Resolver {
    let found = FILES.iter().filter_map(|file| root.text(file).ok());
    let mut read = found.map(|text| parse(&text));
    read.find(|resolver| !resolver.nameservers.is_empty())
        .unwrap_or_default()
}

fn parse(text: &str) -> Resolver {
    let mut resolver = Resolver::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => {
                let address = words.next().and_then(|word| word.parse().ok());
                // A node's own loopback interface has no server, and nodes have no way to IPv6.
                let reached = address.filter(|address: &Ipv4Addr| !address.is_loopback());
                resolver.nameservers.extend(reached);
            }
            // The last one counts.
            Some("search" | "domain") => resolver.search = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    resolver
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    const SYSTEMD: &str = "nameserver 127.0.0.53\noptions edns0\nsearch lan\n";

    #[test]
    fn servers_that_nodes_reach_are_found() {
        let text = "# of the base\nnameserver 192.0.2.1\nnameserver ::1\nnameserver\nnameserver 192.0.2.2\n\
                    domain old\nsearch example.org  lan\n";
        let expected = Resolver {
            nameservers: vec![Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)],
            search: vec!["example.org".into(), "lan".into()],
        };
        let tree = Tree::new(&[(FILES[0], text), (FILES[1], "nameserver 192.0.2.3")]);
        assert_eq!(resolver(&tree.root()), expected);
    }

    #[test]
    fn the_servers_of_systemd_resolved_are_found() {
        let tree = Tree::new(&[(FILES[0], SYSTEMD), (FILES[1], "nameserver 192.0.2.3\n")]);
        let found = resolver(&tree.root()).nameservers;
        assert_eq!(found, [Ipv4Addr::new(192, 0, 2, 3)]);
        let alone = Tree::new(&[(FILES[0], SYSTEMD)]);
        assert_eq!(resolver(&alone.root()), Resolver::default());
        assert_eq!(resolver(&Tree::new(&[]).root()), Resolver::default());
    }
}
