//! The network of nodes and base: a bridge that exists while a node is attached to it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::network::{BASE_ADDRESS, PREFIX};
use sha2::{Digest, Sha256};

use crate::root::Root;
use crate::state::{self, Lock};

use super::command::run;

/// The bridge's name.
const BRIDGE: &str = "insula0";
/// Name of the lock held while the bridge is made or removed.
const LOCK: &str = "network";
/// Timeout of taking the lock, and the interval between attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);
/// First address for nodes without a requested one; those before can be requested.
const FIRST: u32 = 0x100;
/// Number of addresses for nodes without a requested one.
const COUNT: u32 = 0xff00 - FIRST;

/// The network's address.
fn network() -> u32 {
    u32::from(BASE_ADDRESS) & !(u32::MAX >> PREFIX)
}

/// The address of a node whose record has none, because another version of insula started it.
#[must_use]
pub(super) fn address(id: u32) -> Ipv4Addr {
    nth(id)
}

fn nth(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(network() + FIRST + number % COUNT)
}

/// Chooses an address that is not in `taken` from a hash of the node's name, so a name gets the
/// same address each time unless another node has it. `None` if all are taken.
#[must_use]
pub(crate) fn free_address(name: &str, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let digest = Sha256::digest(name);
    let first = digest.iter().take(4);
    let first = first.fold(0_u32, |number, byte| number << 8 | u32::from(*byte)) % COUNT;
    let mut all = (0..COUNT).map(|number| nth(first + number));
    all.find(|address| !taken.contains(address))
}

/// Addresses that a node can request; they are never assigned by default.
#[must_use]
pub fn free_addresses() -> RangeInclusive<Ipv4Addr> {
    let base = u32::from(BASE_ADDRESS);
    Ipv4Addr::from(base + 1)..=Ipv4Addr::from(network() + FIRST - 1)
}

/// Attaches an interface to the bridge; creates the bridge if needed.
pub(super) fn join(interface: &str) -> io::Result<()> {
    let _locked = lock()?;
    if !bridge_exists() {
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        let address = format!("{BASE_ADDRESS}/{PREFIX}");
        ip(&["address", "add", &address, "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
    }
    ip(&["link", "set", interface, "master", BRIDGE, "up"])
}

/// Removes the bridge if no interface is attached to it.
pub(super) fn leave() {
    let left = || {
        let _locked = lock()?;
        let ports = fs::read_dir(format!("/sys/class/net/{BRIDGE}/brif"))?.count();
        match ports {
            0 => ip(&["link", "delete", BRIDGE]),
            _ => Ok(()),
        }
    };
    // If this fails, the next node uses the bridge.
    let _: io::Result<()> = left();
}

fn bridge_exists() -> bool {
    Path::new("/sys/class/net").join(BRIDGE).exists()
}

/// Takes the lock; dropping it releases it.
fn lock() -> io::Result<Lock> {
    let began = Instant::now();
    loop {
        if let Some(lock) = state::try_lock(&Root::default(), LOCK)? {
            return Ok(lock);
        }
        if began.elapsed() > LOCK_TIMEOUT {
            let text = format!("another process has held the lock `{LOCK}` for {LOCK_TIMEOUT:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(LOCK_INTERVAL);
    }
}

fn ip(words: &[&str]) -> io::Result<()> {
    run(Command::new("ip").args(words)).map_err(|error| {
        let text = format!("{}: {error}", words.join(" "));
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        let mut taken = BTreeSet::new();
        let first = free_address("web", &taken).unwrap();
        assert_eq!(free_address("web", &taken), Some(first));
        taken.insert(first);
        let next = free_address("web", &taken).unwrap();
        assert_ne!(next, first);
        taken.extend((0..COUNT).map(nth));
        assert_eq!(taken.len(), COUNT as usize);
        assert_eq!(free_address("web", &taken), None);
        taken.remove(&first);
        assert_eq!(free_address("other", &taken), Some(first));
        assert!(!taken.contains(&BASE_ADDRESS));
        assert!(taken.iter().all(|one| !free_addresses().contains(one)));
        assert_eq!(taken.first().unwrap().to_string(), "10.78.1.0");
        assert_eq!(taken.last().unwrap().to_string(), "10.78.254.255");
    }
}
