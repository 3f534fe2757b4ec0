//! The way of nodes to other hosts, under the base's address: network address translation.
//!
//! A [table] of nftables of our own has it, which exists as long as there is a bridge of nodes. Interfaces of the
//! base that forward no packets are made to, and the table names them: what comes in by one of them still goes
//! to no other interface that there is. So the base becomes a router for its nodes and for nobody else. If somebody else has the
//! base forward packets, as Docker does, its interfaces are left as they are.
//!
//! From other hosts nobody reaches a node but by a published port ([`port_forward`]), or where somebody has translated an
//! address of the base's to a node's. Nodes of one network do not reach those of another.
//!
//! [table]: super::nat_table
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

use insula_base::root::Root;
use insula_node::attachment::{BRIDGE, Link, Publish, network_of_bridge};

use super::bridge;
use super::command::run;
use super::monitor::DeviceEvents;
use super::nat_table::{TABLE, Table, nft};
use super::port_forward;

/// Name of the lock held while the way is opened or closed, and the timeout of taking it.
const LOCK: &str = "nat";
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of each command: the first of a base loads modules.
pub(super) const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// How the names of our own interfaces begin: bridges, and those to nodes.
const OWN: &str = "insula";
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

/// A node's address and network, and its published ports.
#[derive(Clone, Debug)]
pub(super) struct NodePorts {
    pub(super) address: Ipv4Addr,
    pub(super) link: Link,
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
            if let Err(error) = let_out(&ports.link) {
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
pub(super) fn let_out(link: &Link) -> io::Result<()> {
    let _locked = bridge::lock(LOCK, LOCK_TIMEOUT)?;
    bridge::make(link, COMMAND_TIMEOUT)?;
    open(&Root::default(), link)
}

/// Removes each bridge that nobody is on, and closes the way then.
pub(super) fn leave() -> io::Result<()> {
    let _locked = bridge::lock(LOCK, LOCK_TIMEOUT)?;
    let root = Root::default();
    bridge::all(&root).iter().for_each(|one| bridge::leave(one));
    match Table::read()? {
        Some(table) => close_gone(&root, table),
        None if bridge::all(&root).is_empty() => port_forward::remove(),
        None => Ok(()),
    }
}

fn open(root: &Root, link: &Link) -> io::Result<()> {
    let table = Table::read()?;
    let closed = match link.internal {
        true => BTreeSet::new(),
        false => closed(root),
    };
    let mut wanted = table.clone().unwrap_or_default();
    wanted.forwarding.extend(closed.iter().cloned());
    wanted.links.retain(|bridge, _| bridge::exists(bridge));
    // An earlier version's table does not tell for which network it is.
    if let Some(network) = network_of_bridge(root, BRIDGE) {
        wanted
            .links
            .entry(BRIDGE.to_owned())
            .or_insert(Link::of_all(network));
    }
    wanted.links.insert(link.bridge.clone(), link.clone());
    // First what tells that they are to be closed again.
    if table.as_ref() != Some(&wanted) {
        nft(&wanted.script(&interfaces(root)))?;
    }
    if link.internal {
        return Ok(());
    }
    for interface in closed.iter().chain([&link.bridge]) {
        forward(root, interface, true)?;
    }
    match docker_drops(root) {
        true => docker_accepts(&link.bridge),
        false => Ok(()),
    }
}

/// Closes the way of networks whose bridges have gone, and all of it with the last.
fn close_gone(root: &Root, mut table: Table) -> io::Result<()> {
    let before = table.links.len();
    let gone = |bridge: &String| !bridge::exists(bridge);
    if docker_drops(root) {
        for bridge in table.links.keys().filter(|bridge| gone(bridge)) {
            for rule in docker_rules(bridge) {
                // Docker may have come later.
                let _ = iptables("-D", &rule);
            }
        }
    }
    table.links.retain(|bridge, _| !gone(bridge));
    if bridge::all(root).is_empty() {
        return close(root, &table).and(port_forward::remove());
    }
    match table.links.len() < before {
        true => nft(&table.script(&interfaces(root))),
        false => Ok(()),
    }
}

/// Closes all of the way.
fn close(root: &Root, table: &Table) -> io::Result<()> {
    if !all_forward(root) {
        for interface in &table.forwarding {
            forward(root, interface, false)?;
        }
    }
    nft(&format!("delete table {TABLE}"))
}

/// Interfaces that forward no packets; none if somebody else has the base forward them.
fn closed(root: &Root) -> BTreeSet<String> {
    if all_forward(root) {
        return BTreeSet::new();
    }
    let is_closed = |name: &String| root.text(&setting(name)).is_ok_and(|value| value == "0");
    interfaces(root).into_iter().filter(is_closed).collect()
}

/// The base's interfaces to other hosts.
fn interfaces(root: &Root) -> BTreeSet<String> {
    let is_others = |name: &String| {
        !name.starts_with(OWN)
            && !["all", "default", "lo"].contains(&name.as_str())
            && is_plain(name)
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
        let found = closed(&tree(&settings, "0\n").root());
        assert_eq!(found, names(&["eth0", "eth1.7"]));
        let others = closed(&tree(&settings, "1\n").root());
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
}
