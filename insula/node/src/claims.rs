//! Exclusive claims of nodes: an address of the network, or a disk that one of them may write to.
//!
//! They are in a node's record, which the module has once the node is created. Until then a lock
//! keeps other commands from claiming the same.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;

use insula_agent::network::Network;
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_driver::Driver;
use insula_driver::name::{self, Name};

use super::{Attachments, Handle, RunRequest, all, networks};
use crate::attachment::{
    self, DiskFile, Link, Networking, Publish, can_be_requested, free_address,
};

/// Name of the lock held while a node with claims is created, and while networks are.
pub(super) const LOCK: &str = "claims";

/// A claim that two nodes share. A stopped node keeps its claims, since it may be restarted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The option that makes the claim.
    pub option: &'static str,
    /// What is claimed.
    pub what: String,
    /// What the user can do.
    pub hint: &'static str,
}

impl Conflict {
    fn address(address: Ipv4Addr) -> Self {
        Self {
            option: "ip",
            what: format!("the address {address}"),
            hint: "give each node its own",
        }
    }

    /// The same disk, which one of the two may write to.
    fn disk(option: &'static str, disk: &DiskFile) -> Self {
        Self {
            option,
            what: format!("the disk {}", disk.path.display()),
            hint: "nodes can share a disk that all of them only read: append `,ro`",
        }
    }

    /// The error for a claim that `node` already has.
    #[must_use]
    pub fn with(&self, node: &str) -> Error {
        let what = format!("the node '{node}' has {} already", self.what);
        unavailable(self.option, what).hint(self.hint)
    }
}

fn unavailable(option: &'static str, what: String) -> Error {
    let error = Error::of(Kind::Unavailable, what).untouched();
    error.about(option)
}

/// The address cannot be requested.
fn outside(address: Ipv4Addr, on: Option<Network>) -> Error {
    let (first, last) = match on {
        Some(network) => (network.nth(2), network.nth(255)),
        None => ([10, 78, 0, 2].into(), [10, 78, 0, 255].into()),
    };
    let like = match on {
        Some(_) => "",
        None => ", or the like of the network that nodes have",
    };
    Error::new(format!("a node cannot have the address {address}"))
        .untouched()
        .about("ip")
        .hint(format!(
            "request one from {first} to {last}{like}, or none to have one assigned"
        ))
}

fn changed(name: &Name) -> Error {
    Error::new(format!("the network '{name}' has just been changed"))
        .untouched()
        .about("network")
        .hint("try again")
}

fn disk_twice(option: &'static str, disk: &DiskFile) -> Error {
    Error::new(format!("the disk {} is given twice", disk.path.display()))
        .untouched()
        .about(option)
        .hint("give it once, or append `,ro` each time")
}

fn port_twice(port: &Publish) -> Error {
    Error::new(format!("the port {} is published twice", port.base))
        .untouched()
        .about("publish")
        .hint("publish each port once per address")
}

fn no_address() -> Error {
    unavailable("ip", "all addresses of the nodes' network are taken".into())
        .nothing_kept()
        .hint("remove a node")
}

fn lock_failed(error: io::Error) -> Error {
    Error::new(format!("the lock `{LOCK}` cannot be taken"))
        .because(error)
        .nothing_kept()
}

/// Refuses a node whose claims conflict with those of others, or whose network would hide one of the base's.
pub(super) fn check(driver: &Driver, root: &Root, request: &RunRequest) -> Result<(), Error> {
    let nodes = all(driver)?;
    check_against(&nodes, request)?;
    match &request.attachments.network {
        Some(wanted) => network_of(root, &nodes, wanted).map(drop),
        None => Ok(()),
    }
}

/// The network for a node that wants this.
fn network_of(root: &Root, nodes: &[Handle], wanted: &Networking) -> Result<Network, Error> {
    let Some(named) = &wanted.named else {
        let others = networks::subnets(root)?;
        return attachment::network(root, default_addresses(nodes), &others, wanted.address);
    };
    // It may have been removed since, and another one created.
    if networks::find(root, &named.name)? != *named {
        return Err(changed(&named.name));
    }
    attachment::check_hidden(root, named.subnet.0, &named.bridge)?;
    Ok(named.subnet.0)
}

/// Refuses the network that a stopped node has had, if the base has come to reach another one at its addresses.
///
/// # Errors
/// What it would hide; nothing was touched.
pub(super) fn check_network(root: &Root, network: &Networking, id: u32) -> Result<(), Error> {
    let Link {
        bridge, network, ..
    } = network.link(id);
    attachment::check_hidden(root, network, &bridge)
}

/// Returns the network of nodes and containers, for a container without an address, or that wants one.
///
/// # Errors
/// When it would hide another network of the base, or the wanted address is of another one.
pub fn current_network(
    driver: &Driver,
    root: &Root,
    wanted: Option<Ipv4Addr>,
) -> Result<Network, Error> {
    let others = networks::subnets(root)?;
    attachment::network(root, default_addresses(&all(driver)?), &others, wanted)
}

fn check_against(nodes: &[Handle], request: &RunRequest) -> Result<(), Error> {
    let wanted = request.attachments.claims();
    wanted.check()?;
    for handle in nodes {
        let there = handle.record.as_ref().map(|record| Claims {
            network: record.network.as_ref(),
            disks: &record.disks,
            first_is_root: false,
        });
        if let Some(conflict) = there.and_then(|there| wanted.conflict(there)) {
            return Err(conflict.with(&name::text(&handle.info.name)));
        }
    }
    wanted.disks.iter().try_for_each(DiskFile::check)
}

/// The claims of a node that is being created. Holds the lock: it must outlive the node's creation.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// Its network, with its address.
    pub(super) network: Option<Networking>,
    _lock: Option<Lock>,
}

/// Claims what the node requests, and assigns an address if it has a network.
pub(super) fn take(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    name: &Name,
) -> Result<Claimed, Error> {
    let Attachments { network, disks, .. } = &request.attachments;
    if network.is_none() && disks.is_empty() {
        return Ok(Claimed::default());
    }
    let lock = state::lock(root, LOCK).map_err(lock_failed)?;
    let nodes = all(driver)?;
    check_against(&nodes, request)?;
    let mut network = network.clone();
    if let Some(wanted) = &mut network {
        let of = network_of(root, &nodes, wanted)?;
        let free = || free_address(of, name.as_str(), &addresses(&nodes));
        let address = wanted.address.or_else(free);
        wanted.address = Some(address.ok_or_else(no_address)?);
    }
    Ok(Claimed {
        network,
        _lock: Some(lock),
    })
}

/// The addresses of nodes on the network of all.
pub(super) fn default_addresses(nodes: &[Handle]) -> BTreeSet<Ipv4Addr> {
    let is_on = |handle: &&Handle| {
        let record = handle.record.as_ref();
        let network = record.and_then(|record| record.network.as_ref());
        network.is_some_and(|network| network.named.is_none())
    };
    let address = |handle: &Handle| {
        let network = handle.record.as_ref()?.network.as_ref()?;
        Some(network.address(handle.info.id))
    };
    nodes.iter().filter(is_on).filter_map(address).collect()
}

/// The addresses of all nodes.
fn addresses(nodes: &[Handle]) -> BTreeSet<Ipv4Addr> {
    let address = |handle: &Handle| {
        let network = handle.record.as_ref()?.network.as_ref()?;
        Some(network.address(handle.info.id))
    };
    nodes.iter().filter_map(address).collect()
}

/// Claims of a node.
#[derive(Clone, Copy, Debug)]
pub struct Claims<'a> {
    /// Its network.
    pub network: Option<&'a Networking>,
    /// Its disks.
    pub disks: &'a [DiskFile],
    /// Whether the first of them is its root.
    pub first_is_root: bool,
}

impl Claims<'_> {
    /// The option that gives a disk.
    fn option_of(&self, disk: &DiskFile) -> &'static str {
        match self.disks.first() {
            Some(first) if self.first_is_root && first == disk => "rootfs",
            _ => "disk",
        }
    }

    fn named_subnet(&self) -> Option<Network> {
        let named = self.network?.named.as_ref()?;
        Some(named.subnet.0)
    }

    fn address(&self) -> Option<Ipv4Addr> {
        self.network.and_then(|network| network.address)
    }

    /// Checks them without regard to other nodes.
    ///
    /// # Errors
    /// What the node cannot have; nothing was touched.
    pub fn check(&self) -> Result<(), Error> {
        if let Some(address) = self.address()
            && !can_be_requested(address, self.named_subnet())
        {
            return Err(outside(address, self.named_subnet()));
        }
        if let Some(disk) = find_conflict(self.disks, DiskFile::conflicts_with) {
            return Err(disk_twice(self.option_of(disk), disk));
        }
        let ports = self.network.map_or(&[][..], |network| &network.publish);
        match find_conflict(ports, Publish::conflicts) {
            Some(port) => Err(port_twice(port)),
            None => Ok(()),
        }
    }

    /// The first conflict with the claims of another node.
    #[must_use]
    pub fn conflict(&self, other: Claims<'_>) -> Option<Conflict> {
        if let Some(address) = self.address().filter(|_| self.address() == other.address()) {
            return Some(Conflict::address(address));
        }
        let conflicts = |one: &&DiskFile| other.disks.iter().any(|two| one.conflicts_with(two));
        let disk = self.disks.iter().find(conflicts)?;
        Some(Conflict::disk(self.option_of(disk), disk))
    }
}

/// The first item that conflicts with an earlier one.
fn find_conflict<T>(all: &[T], conflict: impl Fn(&T, &T) -> bool) -> Option<&T> {
    let (_, found) = all.iter().enumerate().find(|(index, one)| {
        let before = &all[..*index];
        before.iter().any(|two| conflict(one, two))
    })?;
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(address: &str) -> Networking {
        Networking {
            publish: Vec::new(),
            address: Some(address.parse().unwrap()),
            poll_us: 0,
            named: None,
        }
    }

    fn disk(path: &str, read_only: bool) -> DiskFile {
        DiskFile {
            path: path.into(),
            read_only,
            is_device: Some(false),
            base: None,
        }
    }

    fn of<'a>(network: Option<&'a Networking>, disks: &'a [DiskFile]) -> Claims<'a> {
        Claims {
            network,
            disks,
            first_is_root: false,
        }
    }

    #[test]
    fn addresses_are_unique() {
        let (one, two) = (on("10.78.0.2"), on("10.78.0.3"));
        let wanted = of(Some(&one), &[]);
        assert_eq!(wanted.conflict(of(Some(&two), &[])), None);
        assert_eq!(wanted.conflict(of(None, &[])), None);
        let conflict = wanted.conflict(of(Some(&one), &[]));
        assert_eq!(conflict, Some(Conflict::address([10, 78, 0, 2].into())));
        let none = Networking::default();
        assert_eq!(of(Some(&none), &[]).conflict(of(Some(&none), &[])), None);
    }

    #[test]
    fn assigned_addresses_cannot_be_requested() {
        for address in [
            "10.78.0.0",
            "10.78.0.1",
            "10.78.1.0",
            "10.77.0.2",
            "10.110.0.2",
            "127.0.0.1",
        ] {
            let refused = of(Some(&on(address)), &[]).check();
            assert_eq!(refused.unwrap_err().option, "ip", "{address}");
        }
        for address in ["10.78.0.2", "10.78.0.255", "10.109.0.9"] {
            assert!(of(Some(&on(address)), &[]).check().is_ok());
        }
    }

    #[test]
    fn no_node_has_a_port_twice() {
        let goes = |publish: &[&str]| {
            let publish = publish.iter().map(|port| port.parse().unwrap()).collect();
            let network = Networking {
                publish,
                address: None,
                poll_us: 0,
                named: None,
            };
            of(Some(&network), &[]).check().is_ok()
        };
        assert!(goes(&[
            "8080:80",
            "8081:80",
            "127.0.0.1:8082:80",
            "127.0.0.2:8082:80"
        ]));
        for twice in [["8080:80", "8080:81"], ["8080:80", "127.0.0.1:8080:80"]] {
            assert!(!goes(&twice), "{twice:?}");
        }
    }

    #[test]
    fn no_node_has_a_writable_disk_twice() {
        let goes = |disks: &[DiskFile]| of(None, disks).check().is_ok();
        assert!(goes(&[disk("/a", false), disk("/b", false)]));
        assert!(goes(&[disk("/a", true), disk("/a", true)]));
        assert!(!goes(&[
            disk("/a", true),
            disk("/b", true),
            disk("/a", false)
        ]));
    }

    #[test]
    fn only_read_only_disks_are_shared() {
        let goes = |one, two| {
            let (mine, theirs) = ([disk("/a", one)], [disk("/b", false), disk("/a", two)]);
            of(None, &mine).conflict(of(None, &theirs)).is_none()
        };
        assert!(goes(true, true));
        assert!(!goes(true, false) && !goes(false, true) && !goes(false, false));
    }
}
