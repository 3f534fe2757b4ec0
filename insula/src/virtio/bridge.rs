//! The network of nodes and base: a bridge, which is there as long as a node is on it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;

use insula_agent::network::{BASE_ADDRESS, PREFIX};

/// Its name.
const BRIDGE: &str = "insula0";
/// Held by whoever makes or removes it.
const LOCK: &str = "/run/insula/network";
/// Nodes' addresses by their ids begin after this one: those before are for nodes that ask for them.
const FIRST: u32 = 0x100;
/// How many there are before they begin anew.
const COUNT: u32 = 0xff00 - FIRST;

/// The number of the network, its first address.
fn network() -> u32 {
    u32::from(BASE_ADDRESS) & !(u32::MAX >> PREFIX)
}

/// The address of the node with this id, if it does not ask for another.
#[must_use]
pub(super) fn address(id: u32) -> Ipv4Addr {
    Ipv4Addr::from(network() + FIRST + id % COUNT)
}

/// Those that a node can ask for: no other gets one of them.
#[must_use]
pub fn free_addresses() -> RangeInclusive<Ipv4Addr> {
    let base = u32::from(BASE_ADDRESS);
    Ipv4Addr::from(base + 1)..=Ipv4Addr::from(network() + FIRST - 1)
}

/// Brings an interface onto the bridge, which is made if there is none.
pub(super) fn join(interface: &str) -> io::Result<()> {
    let _locked = lock()?;
    if !is_there() {
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        let address = format!("{BASE_ADDRESS}/{PREFIX}");
        ip(&["address", "add", &address, "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
    }
    ip(&["link", "set", interface, "master", BRIDGE, "up"])
}

/// Removes the bridge if nobody is on it any more.
pub(super) fn leave() {
    let left = || {
        let _locked = lock()?;
        let ports = fs::read_dir(format!("/sys/class/net/{BRIDGE}/brif"))?.count();
        match ports {
            0 => ip(&["link", "delete", BRIDGE]),
            _ => Ok(()),
        }
    };
    // One that is left over serves the next node.
    let _: io::Result<()> = left();
}

fn is_there() -> bool {
    Path::new("/sys/class/net").join(BRIDGE).exists()
}

/// With the answer's end the next one may.
fn lock() -> io::Result<File> {
    let folder = Path::new(LOCK).parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let file = File::create(LOCK)?;
    file.lock()?;
    Ok(file)
}

fn ip(words: &[&str]) -> io::Result<()> {
    let answer = Command::new("ip").args(words).output()?;
    match answer.status.success() {
        true => Ok(()),
        false => {
            let complaint = String::from_utf8_lossy(&answer.stderr);
            Err(io::Error::other(format!(
                "ip {}: {}",
                words.join(" "),
                complaint.trim()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_addresses_of_their_own() {
        assert_eq!(address(1).to_string(), "10.78.1.1");
        assert_eq!(address(1), address(1 + COUNT));
        let all: std::collections::BTreeSet<_> = (0..COUNT).map(address).collect();
        assert_eq!(all.len(), COUNT as usize);
        assert!(!all.contains(&BASE_ADDRESS));
        assert!(all.iter().all(|one| !free_addresses().contains(one)));
        assert_eq!(all.last().unwrap().to_string(), "10.78.254.255");
    }
}
