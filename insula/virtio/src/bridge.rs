//! The network of nodes and base: a bridge that exists while a node is attached to it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::network::{BASE_ADDRESS, PREFIX, card};
use insula_base::root::Root;
use insula_base::state::{self, Lock};

use super::command::run;

/// The bridge's name.
pub(super) const BRIDGE: &str = "insula0";
/// Name of the lock held while the bridge is made or removed.
const LOCK: &str = "network";
/// Timeout of taking the lock, and the interval between attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Creates the bridge, if there is none.
pub(super) fn make() -> io::Result<()> {
    let _locked = lock(LOCK, LOCK_TIMEOUT)?;
    make_locked()
}

fn make_locked() -> io::Result<()> {
    if exists() {
        return Ok(());
    }
    // By default its MAC address is the lowest of its ports', and changes with them: nodes would
    // send to one that is no more.
    let card = text(card(BASE_ADDRESS));
    ip(&["link", "add", BRIDGE, "address", &card, "type", "bridge"])?;
    let address = format!("{BASE_ADDRESS}/{PREFIX}");
    ip(&["address", "add", &address, "dev", BRIDGE])?;
    ip(&["link", "set", BRIDGE, "up"])
}

/// Attaches an interface to the bridge; creates the bridge if needed.
pub(super) fn join(interface: &str) -> io::Result<()> {
    let _locked = lock(LOCK, LOCK_TIMEOUT)?;
    make_locked()?;
    ip(&["link", "set", interface, "master", BRIDGE, "up"])?;
    // Packets from a container go to others on the same node, and to the node itself.
    port(interface, &["hairpin", "on"])
}

/// Attaches an interface to the bridge, if there is one, to which only those packets go that are for
/// addresses [directed](direct) to it.
pub(super) fn join_aside(interface: &str) -> io::Result<()> {
    let _locked = lock(LOCK, LOCK_TIMEOUT)?;
    ip(&["link", "set", interface, "master", BRIDGE, "up"])?;
    let options = ["learning", "flood", "mcast_flood", "bcast_flood"];
    let options: Vec<_> = options.iter().flat_map(|option| [*option, "off"]).collect();
    port(interface, &options)
}

/// Changes options of an interface as a port of the bridge.
fn port(interface: &str, options: &[&str]) -> io::Result<()> {
    let change = ["link", "set", "dev", interface, "type", "bridge_slave"];
    ip(&[&change[..], options].concat())
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
    named(&words, run(Command::new("bridge").args(words)))
}

/// Removes the bridge if no interface is attached to it.
pub(super) fn leave() {
    let left = || {
        let _locked = lock(LOCK, LOCK_TIMEOUT)?;
        let ports = fs::read_dir(format!("/sys/class/net/{BRIDGE}/brif"))?.count();
        if ports > 0 {
            return Ok(());
        }
        ip(&["link", "delete", BRIDGE])
    };
    // If this fails, the next node uses the bridge.
    let _: io::Result<()> = left();
}

/// Whether there is the bridge.
pub(super) fn exists() -> bool {
    Path::new("/sys/class/net").join(BRIDGE).exists()
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

fn text(card: [u8; 6]) -> String {
    card.map(|byte| format!("{byte:02x}")).join(":")
}

fn ip(words: &[&str]) -> io::Result<()> {
    named(words, run(Command::new("ip").args(words)))
}

fn named(words: &[&str], done: io::Result<()>) -> io::Result<()> {
    done.map_err(|error| {
        let text = format!("{}: {error}", words.join(" "));
        io::Error::new(error.kind(), text)
    })
}
