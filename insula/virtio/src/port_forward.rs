//! Published ports for other hosts: the base's kernel forwards what comes from them straight to a node or a
//! container, which sees their own addresses (nft(8), `dnat`). What comes from the base itself or from its nodes, IPv6, and
//! everything where somebody else filters what the base forwards, goes through the [relay](super::publish),
//! which has each port open in any case.
//!
//! A table of our own has maps from ports to where they lead. What it has for an address stays when the process
//! that published the ports is killed, and so do connections; the next one that has the address replaces it.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::process::Command;

use insula_base::root::Root;
use insula_node::attachment::{Protocol, Publish};
use serde_json::Value;

use super::bridge;
use super::command::{output, run};
use super::nat::{self, COMMAND_TIMEOUT, LOCK_TIMEOUT};
use super::nat_table;

/// The table, and the lock held while it is changed.
const TABLE: &str = "insula_ports";
const LOCK: &str = "ports";
/// Maps of ports of one address of the base, and of all.
const MAPS: [(&str, &str); 4] = [
    ("tcp_ports", KEY_WITH_ADDRESS),
    ("udp_ports", KEY_WITH_ADDRESS),
    ("any_tcp_ports", KEY),
    ("any_udp_ports", KEY),
];
const KEY_WITH_ADDRESS: &str = "ipv4_addr . inet_service";
const KEY: &str = "inet_service";
/// Families of tables in which others may filter what the base forwards.
const FAMILIES: [&str; 2] = ["ip", "inet"];
/// Tables that iptables has in its older way, of which `nft` knows nothing.
const LEGACY_TABLES: &str = "/proc/net/ip_tables_names";

/// A port of the base, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Element {
    map: String,
    /// None of a port of all addresses.
    at: Option<Ipv4Addr>,
    port: u16,
    to: SocketAddrV4,
}

/// Has the base's kernel forward these ports to an address, and no others. Returns whether it does: not if somebody
/// else filters what it forwards.
///
/// # Errors
/// When a command fails, or `nft` is not installed; the relay has the ports then.
pub(super) fn set(address: Ipv4Addr, ports: &[Publish]) -> io::Result<bool> {
    let _locked = bridge::lock(LOCK, LOCK_TIMEOUT)?;
    let wanted: BTreeSet<_> = ports
        .iter()
        .filter_map(|port| Element::new(port, address))
        .collect();
    let present = elements(&listed()?);
    if wanted.is_empty() && !present.iter().any(|one| *one.to.ip() == address) {
        return Ok(true);
    }
    let is_forwarded = wanted.is_empty() || !is_filtered(&Root::default())?;
    let wanted = if is_forwarded {
        wanted
    } else {
        BTreeSet::new()
    };
    nft(&script(address, &present, &wanted))?;
    Ok(is_forwarded)
}

/// Removes the table, if there is one.
pub(super) fn remove() -> io::Result<()> {
    let _locked = bridge::lock(LOCK, LOCK_TIMEOUT)?;
    match listed()? {
        Value::Null => Ok(()),
        _ => nft(&format!("delete table ip {TABLE}")),
    }
}

/// The table as `nft` lists it; null if there is none.
fn listed() -> io::Result<Value> {
    match nft_json(&["list", "table", "ip", TABLE]) {
        Err(error) if error.kind() == io::ErrorKind::Other => Ok(Value::Null),
        listed => listed,
    }
}

/// Makes what there is for an address what is wanted, all at once.
fn script(address: Ipv4Addr, present: &BTreeSet<Element>, wanted: &BTreeSet<Element>) -> String {
    let mut script = format!("add table ip {TABLE}\n");
    for (map, key) in MAPS {
        let types = format!("{key} : ipv4_addr . inet_service");
        script += &format!("add map ip {TABLE} {map} {{ type {types}; }}\n");
    }
    script += &format!(
        "add chain ip {TABLE} prerouting {{ type nat hook prerouting priority dstnat; }}
         flush chain ip {TABLE} prerouting
         add rule ip {TABLE} prerouting iifname lo return
         add rule ip {TABLE} prerouting iifname \"insula*\" return
         add rule ip {TABLE} prerouting fib daddr type != local return
         add rule ip {TABLE} prerouting dnat to ip daddr . tcp dport map @tcp_ports
         add rule ip {TABLE} prerouting dnat to ip daddr . udp dport map @udp_ports
         add rule ip {TABLE} prerouting dnat to tcp dport map @any_tcp_ports
         add rule ip {TABLE} prerouting dnat to udp dport map @any_udp_ports\n"
    );
    let is_old =
        |one: &&Element| *one.to.ip() == address || wanted.iter().any(|it| it.is_same_port(one));
    for one in present.iter().filter(is_old) {
        script += &format!("delete element ip {TABLE} {one}\n");
    }
    for one in wanted {
        script += &format!("add element ip {TABLE} {one}\n");
    }
    script
}

impl Element {
    /// That of a published port; none if no other host reaches that.
    fn new(port: &Publish, address: Ipv4Addr) -> Option<Self> {
        let at = match port.at {
            IpAddr::V4(at) if at.is_unspecified() => None,
            IpAddr::V4(at) if !at.is_loopback() => Some(at),
            _ => return None,
        };
        let protocol = match port.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        Some(Self {
            map: match at {
                Some(_) => format!("{protocol}_ports"),
                None => format!("any_{protocol}_ports"),
            },
            at,
            port: port.base,
            to: SocketAddrV4::new(address, port.node),
        })
    }

    fn is_same_port(&self, other: &Self) -> bool {
        (&self.map, self.at, self.port) == (&other.map, other.at, other.port)
    }

    /// One as `nft -j` lists it.
    fn parse(map: &str, [key, value]: [&Value; 2]) -> Option<Self> {
        let (at, port) = match key["concat"].as_array() {
            Some(parts) => (Some(parts.first()?.as_str()?.parse().ok()?), parts.get(1)?),
            None => (None, key),
        };
        let to = value["concat"].as_array()?;
        let ip = to.first()?.as_str()?.parse().ok()?;
        let number = |value: &Value| u16::try_from(value.as_u64()?).ok();
        Some(Self {
            map: map.to_owned(),
            at,
            port: number(port)?,
            to: SocketAddrV4::new(ip, number(to.get(1)?)?),
        })
    }
}

impl fmt::Display for Element {
    /// As `nft` takes it: its map, and itself.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} {{ ", self.map)?;
        if let Some(at) = self.at {
            write!(to, "{at} . ")?;
        }
        write!(
            to,
            "{} : {} . {} }}",
            self.port,
            self.to.ip(),
            self.to.port()
        )
    }
}

/// The elements of a listed table.
fn elements(listed: &Value) -> BTreeSet<Element> {
    let mut found = BTreeSet::new();
    for map in objects(listed, "map") {
        let name = map["name"].as_str().unwrap_or_default();
        for pair in map["elem"].as_array().into_iter().flatten() {
            found.extend(Element::parse(name, [&pair[0], &pair[1]]));
        }
    }
    found
}

/// The objects of a kind in the output of `nft -j`.
fn objects<'a>(listed: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let objects = listed["nftables"].as_array().into_iter().flatten();
    objects.filter_map(move |object| object.get(kind))
}

/// Whether somebody else may drop what the base forwards to nodes. Docker does, but has a place for the rules of others.
fn is_filtered(root: &Root) -> io::Result<bool> {
    let legacy = root.text(LEGACY_TABLES).unwrap_or_default();
    if legacy.lines().any(|table| table == "filter") {
        return Ok(true);
    }
    let is_docker = nat::docker_drops(root);
    for chain in filters(&nft_json(&["-t", "list", "chains"])?) {
        let is_dockers = chain[..] == ["ip", "filter", "FORWARD"];
        if is_docker && is_dockers {
            continue;
        }
        let [family, table, name] = &chain;
        let rules = nft_json(&["list", "chain", family, table, name])?;
        if may_drop(&rules) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Family, table and name of each chain of others for packets that are forwarded.
fn filters(listed: &Value) -> Vec<[String; 3]> {
    let text = |chain: &Value, key: &str| chain[key].as_str().unwrap_or_default().to_owned();
    let chains = objects(listed, "chain").filter(|chain| chain["hook"] == "forward");
    let named = chains.map(|chain| ["family", "table", "name"].map(|key| text(chain, key)));
    let is_others = |[family, table, _]: &[String; 3]| {
        FAMILIES.contains(&family.as_str()) && format!("{family} {table}") != nat_table::TABLE
    };
    named.filter(is_others).collect()
}

/// Whether a listed chain drops by default, or has rules: those may drop, and what they mean only their owner knows.
fn may_drop(listed: &Value) -> bool {
    let drops = objects(listed, "chain").any(|chain| chain["policy"] == "drop");
    drops || objects(listed, "rule").next().is_some()
}

fn nft_json(words: &[&str]) -> io::Result<Value> {
    let told = output(Command::new("nft").arg("-j").args(words), COMMAND_TIMEOUT)?;
    Ok(serde_json::from_slice(&told)?)
}

fn nft(script: &str) -> io::Result<()> {
    run(Command::new("nft").arg(script), COMMAND_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NODE: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

    fn element(text: &str) -> Option<Element> {
        Element::new(&text.parse().unwrap(), NODE)
    }

    #[test]
    fn ports_that_other_hosts_reach_have_elements() {
        for (port, expected) in [
            ("8080:80", "any_tcp_ports { 8080 : 10.78.0.2 . 80 }"),
            ("53:5353/udp", "any_udp_ports { 53 : 10.78.0.2 . 5353 }"),
            (
                "192.0.2.1:8080:80",
                "tcp_ports { 192.0.2.1 . 8080 : 10.78.0.2 . 80 }",
            ),
            (
                "192.0.2.1:53:53/udp",
                "udp_ports { 192.0.2.1 . 53 : 10.78.0.2 . 53 }",
            ),
        ] {
            assert_eq!(element(port).unwrap().to_string(), expected);
        }
        for port in [
            "127.0.0.1:8080:80",
            "[::1]:8080:80",
            "[2001:db8::1]:8080:80",
        ] {
            assert_eq!(element(port), None);
        }
    }

    #[test]
    fn a_listed_table_is_read() {
        let to = json!({"concat": ["10.78.0.2", 80]});
        let listed = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"table": {"family": "ip", "name": TABLE}},
            {"map": {"family": "ip", "name": "tcp_ports", "table": TABLE,
                     "elem": [[{"concat": ["192.0.2.1", 8080]}, to]]}},
            {"map": {"family": "ip", "name": "any_tcp_ports", "table": TABLE, "elem": [[8081, to]]}},
            {"map": {"family": "ip", "name": "any_udp_ports", "table": TABLE}},
            {"map": {"family": "ip", "name": "any_udp_ports", "elem": [[70000, to], ["a", to], 1]}},
        ]});
        let expected = ["192.0.2.1:8080:80", "8081:80"].map(|port| element(port).unwrap());
        assert_eq!(elements(&listed), BTreeSet::from(expected));
        assert!(elements(&Value::Null).is_empty());
    }

    #[test]
    fn what_an_address_had_is_replaced_and_other_addresses_keep_theirs() {
        let other = Ipv4Addr::new(10, 78, 0, 3);
        let of = |port: &str, to| Element::new(&port.parse().unwrap(), to).unwrap();
        let present = BTreeSet::from([of("1:1", NODE), of("2:2", other), of("3:3", other)]);
        let wanted = BTreeSet::from([of("3:33", NODE)]);
        let script = script(NODE, &present, &wanted);
        let changes: Vec<_> = script
            .lines()
            .filter(|line| line.contains("element"))
            .collect();
        assert_eq!(
            changes,
            [
                "delete element ip insula_ports any_tcp_ports { 1 : 10.78.0.2 . 1 }",
                "delete element ip insula_ports any_tcp_ports { 3 : 10.78.0.3 . 3 }",
                "add element ip insula_ports any_tcp_ports { 3 : 10.78.0.2 . 33 }",
            ]
        );
    }

    #[test]
    fn chains_of_others_that_may_drop_are_found() {
        let chain = |family: &str, table: &str, hook: &str| json!({"chain": {"family": family, "table": table, "name": "c", "hook": hook}});
        let listed = json!({"nftables": [
            chain("inet", "insula", "forward"),
            chain("inet", "firewalld", "forward"),
            chain("inet", "firewalld", "input"),
            chain("bridge", "filter", "forward"),
            {"chain": {"family": "ip", "table": "nat", "name": "DOCKER"}},
        ]});
        assert_eq!(
            filters(&listed),
            [["inet", "firewalld", "c"].map(str::to_owned)]
        );
        let empty = |policy: &str| json!({"nftables": [{"chain": {"policy": policy}}]});
        assert!(!may_drop(&empty("accept")));
        assert!(may_drop(&empty("drop")));
        assert!(may_drop(
            &json!({"nftables": [{"chain": {"policy": "accept"}}, {"rule": {}}]})
        ));
    }
}
