//! The way of nodes to other hosts, under the base's address: network address translation.
//!
//! A table of nftables of our own has it, which exists as long as the nodes' bridge. Interfaces of the
//! base that forward no packets are made to, and the table names them: what comes in by one of them still goes
//! to no other interface that there is. So the base becomes a router for its nodes and for nobody else. If somebody else has the
//! base forward packets, as Docker does, its interfaces are left as they are.
//!
//! From other hosts nobody reaches a node but by a published port ([`port_forward`]), or where somebody has translated an
//! address of the base's to a node's.
//!
//! On a loaded base the commands take seconds, which a driver would not wait for: a thread runs them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use insula_agent::network::Network;
use insula_base::root::Root;
use insula_node::attachment::Publish;
use serde_json::Value;

use super::bridge::{self, BRIDGE};
use super::command::{output, run};
use super::monitor::DeviceEvents;
use super::port_forward;

/// Name of the lock held while the way is opened or closed, and the timeout of taking it.
const LOCK: &str = "nat";
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of each command: the first of a base loads modules.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The table, its set of interfaces that forward packets for nodes only, and that of all that there were then.
pub(super) const TABLE: &str = "inet insula";
const FORWARDING: &str = "forwarding";
const INTERFACES: &str = "interfaces";
/// Folder with the settings of each interface (kernel: Documentation/networking/ip-sysctl.rst).
const SETTINGS: &str = "/proc/sys/net/ipv4/conf";
/// Docker's chain for the rules of others: it drops all that is forwarded and accepted by none.
const DOCKER: &str = "DOCKER-USER";

/// The way of a node to other hosts, and theirs to its published ports. It is closed after the node's end, if there is no
/// bridge any more.
pub(super) struct Nat {
    device_events: Arc<dyn DeviceEvents>,
    /// None of a node without a network.
    ports: Option<NodePorts>,
    opening: Mutex<Vec<JoinHandle<()>>>,
    was_opened: AtomicBool,
}

/// A node's address, and its published ports.
#[derive(Clone, Debug)]
pub(super) struct NodePorts {
    pub(super) address: Ipv4Addr,
    pub(super) published: Vec<Publish>,
}

impl Nat {
    /// One that is not open.
    pub(super) fn new(device_events: &Arc<dyn DeviceEvents>, ports: Option<NodePorts>) -> Self {
        Self {
            device_events: Arc::clone(device_events),
            ports,
            opening: Mutex::default(),
            was_opened: AtomicBool::new(false),
        }
    }

    /// Begins to open it; opened already, it takes interfaces into account that have come since. It should be
    /// open when the node sends its first packet: connections that others have tracked before keep the
    /// node's address. A failure is reported.
    pub(super) fn open(&self) {
        let Some(ports) = self.ports.clone() else {
            return;
        };
        self.was_opened.store(true, Ordering::Relaxed);
        let events = Arc::clone(&self.device_events);
        let open = move || {
            if let Err(error) = let_out(Network::of(ports.address)) {
                events.report(&format!("network: it reaches no other hosts: {error}"));
            }
            if let Err(error) = port_forward::set(ports.address, &ports.published)
                && !ports.published.is_empty()
            {
                events.report(&format!("network: published ports are relayed: {error}"));
            }
        };
        let thread = thread::Builder::new().name("nat".into()).spawn(open);
        let mut opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        opening.retain(|thread| !thread.is_finished());
        // Without a thread the node has its network all the same.
        opening.extend(thread.ok());
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        let Some(ports) = self.ports.take_if(|_| *self.was_opened.get_mut()) else {
            return;
        };
        let opening = self.opening.get_mut();
        for thread in opening.unwrap_or_else(PoisonError::into_inner).drain(..) {
            // One that panicked has ended as well.
            let _ = thread.join();
        }
        if let Err(error) = forget_network(ports.address) {
            let text = format!("network: the way to other hosts is not closed: {error}");
            self.device_events.report(&text);
        }
    }
}

/// Closes the way of a node that was removed, and what leads to its published ports: its supervisor may have been killed, and
/// then has not. Does nothing if it has.
///
/// # Errors
/// When a command fails; the end of another node on the network does it again.
pub fn forget_network(address: Ipv4Addr) -> io::Result<()> {
    let closed = port_forward::set(address, &[]).map(drop);
    let left = leave();
    closed.and(left)
}

/// Opens the way, or takes new interfaces into account.
pub(super) fn let_out(network: Network) -> io::Result<()> {
    let _locked = bridge::lock(LOCK, LOCK_TIMEOUT)?;
    bridge::make(network, COMMAND_TIMEOUT)?;
    open(&Root::default(), (BRIDGE, network))
}

/// Removes the bridge if nobody is on it, and closes the way then.
pub(super) fn leave() -> io::Result<()> {
    let _locked = bridge::lock(LOCK, LOCK_TIMEOUT)?;
    bridge::leave();
    match bridge::exists() {
        true => Ok(()),
        false => close(&Root::default(), BRIDGE).and(port_forward::remove()),
    }
}

fn open(root: &Root, (bridge, network): (&str, Network)) -> io::Result<()> {
    let opened = opened()?;
    let closed = closed(root, bridge);
    // First what tells that they are to be closed again.
    if opened.is_none() || !closed.is_empty() {
        let all = opened.into_iter().flatten().chain(closed.iter().cloned());
        let interfaces = interfaces(root, bridge);
        nft(&table((bridge, network), &all.collect(), &interfaces))?;
    }
    for interface in closed.iter().map(String::as_str).chain([bridge]) {
        forward(root, interface, true)?;
    }
    match docker_drops(root) {
        true => docker_accepts(bridge),
        false => Ok(()),
    }
}

/// Closes the way, as far as it is open.
fn close(root: &Root, bridge: &str) -> io::Result<()> {
    let Some(opened) = opened()? else {
        return Ok(());
    };
    if !all_forward(root) {
        for interface in opened {
            forward(root, &interface, false)?;
        }
    }
    if docker_drops(root) {
        for rule in docker_rules(bridge) {
            // Docker may have come later.
            let _ = iptables("-D", &rule);
        }
    }
    nft(&format!("delete table {TABLE}"))
}

/// Interfaces that forward packets for nodes only; `None` if there is no table.
fn opened() -> io::Result<Option<BTreeSet<String>>> {
    let (family, table) = TABLE.split_once(' ').unwrap_or_default();
    let list = ["-j", "list", "set", family, table, FORWARDING];
    match output(Command::new("nft").args(list), COMMAND_TIMEOUT) {
        Ok(text) => Ok(Some(elements(&text))),
        // There is no table, says nft.
        Err(error) if error.kind() == io::ErrorKind::Other => Ok(None),
        Err(error) => Err(error),
    }
}

/// The elements of the set in the output of `nft -j list set`.
fn elements(text: &[u8]) -> BTreeSet<String> {
    let listed: Value = serde_json::from_slice(text).unwrap_or_default();
    let objects = listed["nftables"].as_array().into_iter().flatten();
    let elements = objects.filter_map(|object| object["set"]["elem"].as_array());
    let names = elements.flatten().filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

/// Interfaces that forward no packets; none if somebody else has the base forward them.
fn closed(root: &Root, bridge: &str) -> BTreeSet<String> {
    if all_forward(root) {
        return BTreeSet::new();
    }
    let is_closed = |name: &String| root.text(&setting(name)).is_ok_and(|value| value == "0");
    interfaces(root, bridge)
        .into_iter()
        .filter(is_closed)
        .collect()
}

/// The base's interfaces to other hosts.
fn interfaces(root: &Root, bridge: &str) -> BTreeSet<String> {
    let is_others = |name: &String| {
        let own = name == bridge || name.starts_with("insula-");
        !own && !["all", "default", "lo"].contains(&name.as_str()) && is_plain(name)
    };
    root.names(SETTINGS).into_iter().filter(is_others).collect()
}

/// Whether a name has nothing that `nft` takes for something else.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte))
}

/// Whether all interfaces forward packets: not by us, who change single ones.
fn all_forward(root: &Root) -> bool {
    root.text("/proc/sys/net/ipv4/ip_forward")
        .is_ok_and(|value| value != "0")
}

fn setting(interface: &str) -> String {
    format!("{SETTINGS}/{interface}/forwarding")
}

/// Has an interface forward packets, or not.
fn forward(root: &Root, interface: &str, on: bool) -> io::Result<()> {
    match fs::write(root.path(&setting(interface)), if on { "1" } else { "0" }) {
        // It has gone meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// The table, in place of the one that there may be. What nodes and base send each other is no connection
/// that has to be tracked.
fn table(
    (bridge, nodes): (&str, Network),
    forwarding: &BTreeSet<String>,
    interfaces: &BTreeSet<String>,
) -> String {
    let among_nodes = format!("ip saddr {nodes} ip daddr {nodes} notrack");
    let (forwarding, interfaces) = (elements_text(forwarding), elements_text(interfaces));
    format!(
        "add table {TABLE}; delete table {TABLE}
         table {TABLE} {{
             set {FORWARDING} {{ type ifname; {forwarding} }}
             set {INTERFACES} {{ type ifname; {interfaces} }}
             chain prerouting {{ type filter hook prerouting priority raw; {among_nodes}; }}
             chain output {{ type filter hook output priority raw; {among_nodes}; }}
             chain forward {{
                 type filter hook forward priority filter;
                 oifname {bridge} ct state established,related accept
                 oifname {bridge} ct status dnat accept
                 iifname != {bridge} oifname {bridge} drop
                 iifname @{FORWARDING} oifname @{INTERFACES} drop
             }}
             chain postrouting {{
                 type nat hook postrouting priority srcnat;
                 ip saddr {nodes} oifname != {bridge} masquerade
             }}
         }}"
    )
}

/// The elements of a set; an empty one has none.
fn elements_text(names: &BTreeSet<String>) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("elements = {{ {} }};", names.join(", ")),
    }
}

fn nft(script: &str) -> io::Result<()> {
    run(Command::new("nft").arg(script), COMMAND_TIMEOUT)
}

/// Whether Docker drops what others forward. It does where it has the base forward packets.
pub(super) fn docker_drops(root: &Root) -> bool {
    let list = ["list", "chain", "ip", "filter", DOCKER];
    all_forward(root) && run(Command::new("nft").args(list), COMMAND_TIMEOUT).is_ok()
}

/// Has Docker accept what nodes send, the answers, and what comes for published ports.
fn docker_accepts(bridge: &str) -> io::Result<()> {
    for rule in docker_rules(bridge) {
        if iptables("-C", &rule).is_err() {
            iptables("-I", &rule)?;
        }
    }
    Ok(())
}

fn docker_rules(bridge: &str) -> [Vec<&str>; 2] {
    let answers = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED,DNAT"];
    [
        vec!["-i", bridge, "-j", "ACCEPT"],
        [&["-o", bridge], &answers[..], &["-j", "ACCEPT"]].concat(),
    ]
}

fn iptables(change: &str, rule: &[&str]) -> io::Result<()> {
    let chain = ["--wait", change, DOCKER];
    let mut command = Command::new("iptables");
    run(command.args(chain).args(rule), COMMAND_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// The simulated settings of some interfaces, and whether all forward.
    fn tree(settings: &[(&str, &str)], all: &str) -> Tree {
        let tree = Tree::new(&[("/proc/sys/net/ipv4/ip_forward", all)]);
        for (name, value) in settings {
            tree.add(&[(&setting(name), value)]);
        }
        tree
    }

    #[test]
    fn interfaces_that_forward_nothing_are_found() {
        let settings = [
            ("all", "0"),
            ("default", "0"),
            ("lo", "0"),
            ("eth0", "0\n"),
            ("eth1.7", "0"),
            ("wg0", "1"),
            ("odd\"", "0"),
            ("insula0", "0"),
            ("insula-3", "0"),
        ];
        let found = closed(&tree(&settings, "0\n").root(), BRIDGE);
        assert_eq!(found, names(&["eth0", "eth1.7"]));
        let others = closed(&tree(&settings, "1\n").root(), BRIDGE);
        assert_eq!(others, names(&[]));
    }

    #[test]
    fn an_interface_that_has_gone_is_no_failure() {
        let tree = tree(&[("eth0", "0")], "0");
        let root = tree.root();
        forward(&root, "eth1", false).unwrap();
        forward(&root, "eth0", true).unwrap();
        assert_eq!(root.text(&setting("eth0")).unwrap(), "1");
    }

    #[test]
    fn the_sets_elements_are_read() {
        let listed =
            br#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"family": "inet",
            "name": "forwarding", "table": "insula", "type": "ifname", "handle": 1,
            "elem": ["eth0", "eth1"]}}]}"#;
        assert_eq!(elements(listed), names(&["eth0", "eth1"]));
        let empty = br#"{"nftables": [{"metainfo": {}}, {"set": {"name": "forwarding"}}]}"#;
        assert_eq!(elements(empty), names(&[]));
        assert_eq!(elements(b"no JSON"), names(&[]));
    }

    #[test]
    fn only_interfaces_in_the_set_are_elements() {
        let of = (BRIDGE, Network::new(10, 79));
        assert!(!table(of, &names(&[]), &names(&[])).contains("elements"));
        let text = table(of, &names(&["eth0"]), &names(&["eth0", "wg0"]));
        for set in [
            r#"elements = { "eth0" };"#,
            r#"elements = { "eth0", "wg0" };"#,
        ] {
            assert!(text.contains(set), "{text}");
        }
        assert!(text.contains("ip saddr 10.79.0.0/16 oifname != insula0 masquerade"));
    }
}
