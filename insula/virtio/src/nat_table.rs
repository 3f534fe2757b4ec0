//! The table of nftables that lets nodes reach other hosts.
//!
//! It tells itself what it was made for: sets name the interfaces that forward packets for nodes only, and the
//! bridges of nodes with their networks. So each process that comes changes it, and the one that goes last closes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Command;

use insula_agent::network::Network;
use insula_node::attachment::Link;
use serde_json::Value;

use super::command::{output, run};
use super::nat::COMMAND_TIMEOUT;

/// The table.
pub(super) const TABLE: &str = "inet insula";
/// Interfaces that forward packets for nodes only, and all that there were then.
const FORWARDING: &str = "forwarding";
const INTERFACES: &str = "interfaces";
/// Bridges with the first addresses of their networks, and those of internal ones.
const NETWORKS: &str = "networks";
const INTERNAL: &str = "internal";

/// What the table is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Table {
    /// Interfaces that forward packets for nodes only.
    pub(super) forwarding: BTreeSet<String>,
    /// The networks of nodes, by their bridges.
    pub(super) links: BTreeMap<String, Link>,
}

impl Table {
    /// The one that there is, if there is one.
    ///
    /// # Errors
    /// When `nft` does not tell.
    pub(super) fn read() -> io::Result<Option<Self>> {
        let (family, table) = TABLE.split_once(' ').unwrap_or_default();
        let list = ["-j", "list", "table", family, table];
        match output(Command::new("nft").args(list), COMMAND_TIMEOUT) {
            Ok(text) => Ok(Some(Self::parse(&text))),
            // There is no table, says nft.
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the output of `nft -j list table`.
    fn parse(text: &[u8]) -> Self {
        let listed: Value = serde_json::from_slice(text).unwrap_or_default();
        let internal = names(&listed, INTERNAL);
        let networks = elements(&listed, NETWORKS).filter_map(|element| {
            let parts = element["concat"].as_array()?;
            let bridge = parts.first()?.as_str()?.to_owned();
            let link = Link {
                network: Network::of(parts.get(1)?.as_str()?.parse().ok()?),
                internal: internal.contains(&bridge),
                bridge: bridge.clone(),
            };
            Some((bridge, link))
        });
        Self {
            forwarding: names(&listed, FORWARDING),
            links: networks.collect(),
        }
    }

    /// What makes it, in place of the one that there may be; `interfaces` are all that the base has to other
    /// hosts. What nodes and base send each other is no connection that has to be tracked.
    pub(super) fn script(&self, interfaces: &BTreeSet<String>) -> String {
        let links = || self.links.values();
        let forwarding = set(FORWARDING, "ifname", self.forwarding.iter().map(quoted));
        let interfaces = set(INTERFACES, "ifname", interfaces.iter().map(quoted));
        let pair = |link: &Link| format!("{} . {}", quoted(&link.bridge), link.network.nth(0));
        let networks = set(NETWORKS, "ifname . ipv4_addr", links().map(pair));
        let internal = links().filter(|link| link.internal);
        let internal = set(
            INTERNAL,
            "ifname",
            internal.map(|link| quoted(&link.bridge)),
        );
        let joined = |of: fn(&Link) -> String| links().map(of).collect::<Vec<_>>().join("; ");
        let among_nodes =
            joined(|Link { network, .. }| format!("ip saddr {network} ip daddr {network} notrack"));
        let (in_and_out, translated) = (joined(in_and_out), joined(translated));
        format!(
            "add table {TABLE}; delete table {TABLE}
         table {TABLE} {{
             {forwarding}
             {interfaces}
             {networks}
             {internal}
             chain prerouting {{ type filter hook prerouting priority raw; {among_nodes}; }}
             chain output {{ type filter hook output priority raw; {among_nodes}; }}
             chain forward {{
                 type filter hook forward priority filter;
                 {in_and_out}
                 iifname @{FORWARDING} oifname @{INTERFACES} drop
             }}
             chain postrouting {{ type nat hook postrouting priority srcnat; {translated}; }}
         }}"
        )
    }
}

/// What comes to a network from elsewhere, and goes out.
fn in_and_out(link: &Link) -> String {
    let bridge = &link.bridge;
    let others = match link.internal {
        true => format!("iifname {bridge} oifname != {bridge} drop"),
        false => format!(
            "oifname {bridge} ct state established,related accept; oifname {bridge} ct status dnat accept"
        ),
    };
    format!("{others}; iifname != {bridge} oifname {bridge} drop;")
}

/// What gets the base's address.
fn translated(link: &Link) -> String {
    let Link {
        bridge,
        network,
        internal,
    } = link;
    match internal {
        true => String::new(),
        false => format!("ip saddr {network} oifname != {bridge} masquerade"),
    }
}

/// The elements of a set in the output of `nft -j`.
fn elements<'a>(listed: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let objects = listed["nftables"].as_array().into_iter().flatten();
    let sets = objects.map(|object| &object["set"]);
    let found = sets.filter(move |set| set["name"] == name);
    found.filter_map(|set| set["elem"].as_array()).flatten()
}

fn names(listed: &Value, set: &str) -> BTreeSet<String> {
    let names = elements(listed, set).filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

/// A set; an empty one has no elements.
fn set(name: &str, kind: &str, elements: impl Iterator<Item = String>) -> String {
    let elements: Vec<_> = elements.collect();
    let elements = match elements.is_empty() {
        true => String::new(),
        false => format!("elements = {{ {} }};", elements.join(", ")),
    };
    format!("set {name} {{ type {kind}; {elements} }}")
}

fn quoted(name: &String) -> String {
    format!("\"{name}\"")
}

/// Runs a script.
pub(super) fn nft(script: &str) -> io::Result<()> {
    run(Command::new("nft").arg(script), COMMAND_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(number: u8, internal: bool) -> Link {
        Link {
            bridge: format!("insula{number}"),
            network: Network::new(10, 78 + number),
            internal,
        }
    }

    fn table(forwarding: &[&str], links: &[Link]) -> Table {
        let named = |link: &Link| (link.bridge.clone(), link.clone());
        Table {
            forwarding: forwarding.iter().map(|&name| name.to_owned()).collect(),
            links: links.iter().map(named).collect(),
        }
    }

    #[test]
    fn what_it_is_made_for_is_read() {
        let listed = br#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"table": {"family": "inet", "name": "insula"}},
            {"set": {"name": "forwarding", "type": "ifname", "elem": ["eth0", "eth1"]}},
            {"set": {"name": "interfaces", "type": "ifname", "elem": ["eth7"]}},
            {"set": {"name": "networks", "type": ["ifname", "ipv4_addr"],
                     "elem": [{"concat": ["insula0", "10.78.0.0"]}, {"concat": ["insula2", "10.80.0.0"]}]}},
            {"set": {"name": "internal", "type": "ifname", "elem": ["insula2"]}}]}"#;
        let expected = table(&["eth0", "eth1"], &[link(0, false), link(2, true)]);
        assert_eq!(Table::parse(listed), expected);
        let empty = br#"{"nftables": [{"metainfo": {}}, {"set": {"name": "forwarding"}}]}"#;
        assert_eq!(Table::parse(empty), Table::default());
        assert_eq!(Table::parse(b"no JSON"), Table::default());
    }

    #[test]
    fn only_what_is_in_a_set_is_an_element() {
        let interfaces = ["eth0", "wg0"].map(str::to_owned).into();
        let none = table(&[], &[]).script(&BTreeSet::new());
        assert!(!none.contains("elements"), "{none}");
        let text = table(&["eth0"], &[link(1, false)]).script(&interfaces);
        for set in [
            r#"set forwarding { type ifname; elements = { "eth0" }; }"#,
            r#"set interfaces { type ifname; elements = { "eth0", "wg0" }; }"#,
            r#"set networks { type ifname . ipv4_addr; elements = { "insula1" . 10.79.0.0 }; }"#,
            "set internal { type ifname;  }",
        ] {
            assert!(text.contains(set), "{text}");
        }
        assert!(text.contains("ip saddr 10.79.0.0/16 oifname != insula1 masquerade"));
    }

    #[test]
    fn an_internal_network_reaches_no_other_hosts() {
        let text = table(&[], &[link(0, false), link(1, true)]).script(&BTreeSet::new());
        assert!(text.contains("iifname insula1 oifname != insula1 drop"));
        assert!(!text.contains("oifname != insula1 masquerade"));
        for bridge in ["insula0", "insula1"] {
            let guarded = format!("iifname != {bridge} oifname {bridge} drop");
            assert!(text.contains(&guarded), "{text}");
        }
    }
}
