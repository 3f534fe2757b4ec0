//! Exclusive claims of nodes: an address of the network, or a disk that one of them may write to.

//!
//! They are in a node's record, which the module has once the node is created. Until then a lock
//! keeps other commands from claiming the same.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use insula_base::root::Root;
use insula_base::state::{self, Lock};
use insula_driver::Driver;
use insula_driver::name::{self, Name};

use super::{FindError, Handle, RunRequest, all};
use crate::attachment::{DiskError, DiskFile, Networking, Publish, free_address, free_addresses};

/// Name of the lock held while a node with claims is created.
const LOCK: &str = "claims";

/// Why a claim was refused. A stopped node keeps its claims, since it may be restarted.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The address cannot be requested.
    #[error(
        "a node cannot have the address {0}; nothing was touched\n\
         request one from {first} to {last}, or none to have one assigned",
        first = free_addresses().start(), last = free_addresses().end()
    )]
    Outside(Ipv4Addr),
    /// Another node has it.
    #[error("the node '{node}' has the address {address} already; nothing was touched")]
    Address {
        /// The address.
        address: Ipv4Addr,
        /// The node.
        node: String,
    },
    /// Another node has it, and one of them may write to it.
    #[error(
        "the node '{node}' has the disk {} already; nothing was touched\n\
         nodes can share a read-only disk: append `,ro`", path.display()
    )]
    Disk {
        /// The disk's file.
        path: PathBuf,
        /// The node.
        node: String,
    },
    /// A writable disk is given twice.
    #[error(
        "the disk {} is given twice; nothing was touched\n\
         give it once, or append `,ro` each time", .0.display()
    )]
    DiskTwice(PathBuf),
    /// A port of the base is published twice.
    #[error(
        "the port {} is published twice; nothing was touched\n\
         publish each port once per address", .0.base
    )]
    PortTwice(Publish),
    /// The disk is in use outside of nodes.
    #[error(transparent)]
    Used(#[from] DiskError),
    /// No address is free.
    #[error("all addresses of the nodes' network are taken; nothing was kept\nremove a node")]
    NoAddress,
    /// The lock could not be taken.
    #[error("the lock `{LOCK}` cannot be taken: {0}; nothing was kept")]
    Lock(io::Error),
    /// The other nodes cannot be read.
    #[error(transparent)]
    Find(#[from] FindError),
}

/// A claim that two nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// An address.
    Address(Ipv4Addr),
    /// A disk's file that one of them may write to.
    Disk(PathBuf),
}

impl Conflict {
    /// The error for a claim that `node` already has.
    #[must_use]
    pub fn with(self, node: &str) -> ClaimError {
        let node = node.to_owned();
        match self {
            Self::Address(address) => ClaimError::Address { address, node },
            Self::Disk(path) => ClaimError::Disk { path, node },
        }
    }
}

/// Refuses a node whose claims conflict with those of others.
pub(super) fn check(driver: &Driver, request: &RunRequest) -> Result<(), ClaimError> {
    check_against(&all(driver)?, request)
}

fn check_against(nodes: &[Handle], request: &RunRequest) -> Result<(), ClaimError> {
    let wanted = Claims {
        network: request.network.as_ref(),
        disks: &request.disks,
    };
    wanted.check()?;
    for handle in nodes {
        let there = handle.record.as_ref().map(|record| Claims {
            network: record.network.as_ref(),
            disks: &record.disks,
        });
        if let Some(conflict) = there.and_then(|there| wanted.conflict(there)) {
            return Err(conflict.with(&name::text(&handle.info.name)));
        }
    }
    Ok(request.disks.iter().try_for_each(DiskFile::check)?)
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
) -> Result<Claimed, ClaimError> {
    if request.network.is_none() && request.disks.is_empty() {
        return Ok(Claimed::default());
    }
    let lock = state::lock(root, LOCK).map_err(ClaimError::Lock)?;
    let nodes = all(driver)?;
    check_against(&nodes, request)?;
    let mut network = request.network.clone();
    if let Some(network) = &mut network
        && network.address.is_none()
    {
        let address = free_address(name.as_str(), &addresses(&nodes));
        network.address = Some(address.ok_or(ClaimError::NoAddress)?);
    }
    Ok(Claimed {
        network,
        _lock: Some(lock),
    })
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
}

impl Claims<'_> {
    fn address(&self) -> Option<Ipv4Addr> {
        self.network.and_then(|network| network.address)
    }

    /// Checks them without regard to other nodes.
    ///
    /// # Errors
    /// [`ClaimError`].
    pub fn check(&self) -> Result<(), ClaimError> {
        let outside = |address: &Ipv4Addr| !free_addresses().contains(address);
        if let Some(address) = self.address().filter(outside) {
            return Err(ClaimError::Outside(address));
        }
        if let Some(disk) = find_conflict(self.disks, DiskFile::conflicts_with) {
            return Err(ClaimError::DiskTwice(disk.path.clone()));
        }
        let ports = self.network.map_or(&[][..], |network| &network.publish);
        match find_conflict(ports, Publish::conflicts) {
            Some(port) => Err(ClaimError::PortTwice(*port)),
            None => Ok(()),
        }
    }

    /// The first conflict with the claims of another node.
    #[must_use]
    pub fn conflict(&self, other: Claims<'_>) -> Option<Conflict> {
        if let Some(address) = self.address().filter(|_| self.address() == other.address()) {
            return Some(Conflict::Address(address));
        }
        let conflicts = |one: &&DiskFile| other.disks.iter().any(|two| one.conflicts_with(two));
        let disk = self.disks.iter().find(conflicts)?;
        Some(Conflict::Disk(disk.path.clone()))
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
        }
    }

    fn disk(path: &str, read_only: bool) -> DiskFile {
        DiskFile {
            path: path.into(),
            read_only,
            is_device: Some(false),
        }
    }

    fn of<'a>(network: Option<&'a Networking>, disks: &'a [DiskFile]) -> Claims<'a> {
        Claims { network, disks }
    }

    #[test]
    fn addresses_are_unique() {
        let (one, two) = (on("10.78.0.2"), on("10.78.0.3"));
        let wanted = of(Some(&one), &[]);
        assert_eq!(wanted.conflict(of(Some(&two), &[])), None);
        assert_eq!(wanted.conflict(of(None, &[])), None);
        let conflict = wanted.conflict(of(Some(&one), &[]));
        assert_eq!(conflict, Some(Conflict::Address([10, 78, 0, 2].into())));
        let none = Networking::default();
        assert_eq!(of(Some(&none), &[]).conflict(of(Some(&none), &[])), None);
    }

    #[test]
    fn assigned_addresses_cannot_be_requested() {
        for address in [
            "10.78.0.0",
            "10.78.0.1",
            "10.78.1.0",
            "10.79.0.2",
            "127.0.0.1",
        ] {
            let refused = of(Some(&on(address)), &[]).check();
            assert!(matches!(refused, Err(ClaimError::Outside(_))), "{address}");
        }
        for address in ["10.78.0.2", "10.78.0.255"] {
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
