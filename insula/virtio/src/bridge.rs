//! The networks of nodes and base: each is a bridge that exists while a node is attached to it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::network::{PREFIX, card};
use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_node::attachment::{Link, is_bridge};
use nix::libc::IFF_UP;

use super::command::{DRIVER_WAITS, run};

/// Name of the lock held while a bridge is made or removed.
const LOCK: &str = "network";
/// Timeout of taking the lock, while a driver may wait, and the interval between attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(6);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Creates the bridge of a network, if there is none. Each step may take `limit`: the first on a base loads a module.
pub(super) fn make(link: &Link, limit: Duration) -> io::Result<()> {
    let _locked = lock(LOCK, LOCK_TIMEOUT)?;
    make_locked(link, limit)
}

fn make_locked(link: &Link, limit: Duration) -> io::Result<()> {
    let Link {
        bridge, network, ..
    } = link;
    if is_up(bridge) {
        return Ok(());
    }
    // Another process may have begun, and not ended: each step is done where it is missing.
    if !exists(bridge) {
        // By default its MAC address is the lowest of its ports', and changes with them: nodes
        // would send to one that is no more.
        let card = text(card(network.base()));
        let add = ["link", "add", bridge, "address", &card, "type", "bridge"];
        ip(&add, limit)?;
    }
    let address = format!("{}/{PREFIX}", network.base());
    ip(&["address", "replace", &address, "dev", bridge], limit)?;
    ip(&["link", "set", bridge, "up"], limit)
}

/// Whether a bridge is up, which is the last step of making it (kernel: `IFF_UP`).
fn is_up(bridge: &str) -> bool {
    let flags = Root::default().text(&format!("/sys/class/net/{bridge}/flags"));
    let flags = flags.map(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16));
    flags.is_ok_and(|flags| flags.is_ok_and(|flags| flags & IFF_UP as u32 != 0))
}

/// Attaches an interface to the bridge of a network; creates the bridge if needed.
pub(super) fn join(link: &Link, interface: &str) -> io::Result<()> {
    let _locked = lock(LOCK, LOCK_TIMEOUT)?;
    make_locked(link, DRIVER_WAITS)?;
    attach(interface, &link.bridge)?;
    // Packets from a container go to others on the same node, and to the node itself.
    port(interface, &["hairpin", "on"])
}

/// Attaches an interface to a bridge that there is, to which only those packets go that are for
/// addresses [directed](direct) to it.
pub(super) fn join_aside(interface: &str, bridge: &str) -> io::Result<()> {
    let _locked = lock(LOCK, LOCK_TIMEOUT)?;
    attach(interface, bridge)?;
    let options = ["learning", "flood", "mcast_flood", "bcast_flood"];
    let options: Vec<_> = options.iter().flat_map(|option| [*option, "off"]).collect();
    port(interface, &options)
}

fn attach(interface: &str, bridge: &str) -> io::Result<()> {
    let change = ["link", "set", interface, "master", bridge, "up"];
    ip(&change, DRIVER_WAITS)
}

/// Changes options of an interface as a port of the bridge.
fn port(interface: &str, options: &[&str]) -> io::Result<()> {
    let change = ["link", "set", "dev", interface, "type", "bridge_slave"];
    ip(&[&change[..], options].concat(), DRIVER_WAITS)
}

/// Where the bridge sends the packets for a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// There, whatever comes from elsewhere.
    Fixed,
    /// There, until a packet from the address comes from elsewhere.
    Learned,
}

/// Directs the packets for a MAC address to an interface. That ends with the interface.
pub(super) fn direct(card: [u8; 6], interface: &str, direction: Direction) -> io::Result<()> {
    let card = text(card);
    let direction = match direction {
        Direction::Fixed => "static",
        Direction::Learned => "dynamic",
    };
    let words = [
        "fdb", "replace", &card, "dev", interface, "master", direction,
    ];
    let done = run(Command::new("bridge").args(words), DRIVER_WAITS);
    named(&words, done)
}

/// Removes a bridge if no interface is attached to it.
pub(super) fn leave(bridge: &str) {
    let left = || {
        let _locked = lock(LOCK, LOCK_TIMEOUT)?;
        let ports = fs::read_dir(format!("/sys/class/net/{bridge}/brif"))?.count();
        if ports > 0 {
            return Ok(());
        }
        ip(&["link", "delete", bridge], DRIVER_WAITS)
    };
    // If this fails, the next node uses the bridge.
    let _: io::Result<()> = left();
}

/// All bridges of nodes.
pub(super) fn all(root: &Root) -> Vec<String> {
    let mut names = root.names("/sys/class/net");
    names.retain(|name| is_bridge(name));
    names
}

/// Whether there is a bridge.
pub(super) fn exists(bridge: &str) -> bool {
    Path::new("/sys/class/net").join(bridge).exists()
}

/// Takes a lock; dropping it releases it.
pub(super) fn lock(name: &str, timeout: Duration) -> io::Result<Lock> {
    let began = Instant::now();
    loop {
        if let Some(lock) = state::try_lock(&Root::default(), name)? {
            return Ok(lock);
        }
        if began.elapsed() > timeout {
            let text = format!("another process has held the lock `{name}` for {timeout:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(LOCK_INTERVAL);
    }
}

/// A MAC address as `ip` takes it.
pub(super) fn text(card: [u8; 6]) -> String {
    card.map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(words: &[&str], limit: Duration) -> io::Result<()> {
    named(words, run(Command::new("ip").args(words), limit))
}

fn named(words: &[&str], done: io::Result<()>) -> io::Result<()> {
    done.map_err(|error| {
        let text = format!("{}: {error}", words.join(" "));
        io::Error::new(error.kind(), text)
    })
}
