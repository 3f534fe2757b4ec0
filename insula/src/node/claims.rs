//! What no two nodes can have: an address of the network, or a disk that one of them may write to.

//!
//! A node has them from when the module knows it, with its record. Until then a lock keeps all
//! other commands from asking for the same.

use std::collections::BTreeSet;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::{FindError, Handle, RunRequest, all};
use crate::driver::Driver;
use crate::name::{self, Name};
use crate::root::Root;
use crate::state::{self, Lock};
use crate::virtio::{DiskError, DiskFile, Networking, Publish, free_address, free_addresses};

/// Held by whoever makes a node that has something of its own.
const LOCK: &str = "claims";

/// What a node asks for is another's, or nobody's to have. A node that is stopped has what it had:
/// it may be started again.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The address is none for a node to ask for.
    #[error(
        "a node cannot have the address {0}; nothing was touched\n\
         ask for one from {first} to {last}, or for none: then it gets one",
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
         nodes can share a disk that all of them only read: write `,ro` behind it", path.display()
    )]
    Disk {
        /// Its file.
        path: PathBuf,
        /// The node.
        node: String,
    },
    /// It would have a disk that it may write to twice.
    #[error(
        "the disk {} is asked for twice; nothing was touched\n\
         name it once, or, if it is only read, with `,ro` behind it each time", .0.display()
    )]
    DiskTwice(PathBuf),
    /// A port of the base would lead to it twice.
    #[error(
        "the port {} is to be opened twice; nothing was touched\n\
         open each port once, at one address or at several", .0.base
    )]
    PortTwice(Publish),
    /// Who is no node has the disk.
    #[error(transparent)]
    Used(#[from] DiskError),
    /// There are too many nodes.
    #[error("all addresses of the nodes' network are taken; nothing was kept\nremove a node")]
    NoAddress,
    /// Others cannot be kept from asking for the same.
    #[error("what the node is to have of its own cannot be locked: {0}; nothing was kept")]
    Lock(io::Error),
    /// The other nodes cannot be looked at.
    #[error(transparent)]
    Find(#[from] FindError),
}

/// What two nodes cannot both have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Clash {
    /// An address.
    Address(Ipv4Addr),
    /// A disk's file: one of them may write to it.
    Disk(PathBuf),
}

impl Clash {
    /// As the one is told who asks for what that node has.
    pub(crate) fn with(self, node: &str) -> ClaimError {
        let node = node.to_owned();
        match self {
            Self::Address(address) => ClaimError::Address { address, node },
            Self::Disk(path) => ClaimError::Disk { path, node },
        }
    }
}

/// Refuses a node that asks for what others have.
pub(super) fn check(driver: &Driver, request: &RunRequest) -> Result<(), ClaimError> {
    check_beside(&all(driver)?, request)
}

fn check_beside(nodes: &[Handle], request: &RunRequest) -> Result<(), ClaimError> {
    let wanted = Claims {
        network: request.network.as_ref(),
        disks: &request.disks,
    };
    wanted.are_possible()?;
    for handle in nodes {
        let there = handle.record.as_ref().map(|record| Claims {
            network: record.network.as_ref(),
            disks: &record.disks,
        });
        if let Some(clash) = there.and_then(|there| wanted.clash(there)) {
            return Err(clash.with(&name::text(&handle.info.name)));
        }
    }
    Ok(request.disks.iter().try_for_each(DiskFile::check)?)
}

/// What a node that is about to be made has of its own. Nobody else is given the same as long as
/// this lives: by then the module must know the node.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// How it is on the network, with its address.
    pub(super) network: Option<Networking>,
    _lock: Option<Lock>,
}

/// Gives the node what it asks for, and an address if it is to have any.
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
    check_beside(&nodes, request)?;
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

/// Those that nodes have.
fn addresses(nodes: &[Handle]) -> BTreeSet<Ipv4Addr> {
    let address = |handle: &Handle| {
        let network = handle.record.as_ref()?.network.as_ref()?;
        Some(network.address(handle.info.id))
    };
    nodes.iter().filter_map(address).collect()
}

/// What a node has, or wants.
#[derive(Clone, Copy)]
pub(crate) struct Claims<'a> {
    /// How it is on the network.
    pub(crate) network: Option<&'a Networking>,
    /// Its disks.
    pub(crate) disks: &'a [DiskFile],
}

impl Claims<'_> {
    fn address(&self) -> Option<Ipv4Addr> {
        self.network.and_then(|network| network.address)
    }

    /// Whether a node can have them at all.
    pub(crate) fn are_possible(&self) -> Result<(), ClaimError> {
        let outside = |address: &Ipv4Addr| !free_addresses().contains(address);
        if let Some(address) = self.address().filter(outside) {
            return Err(ClaimError::Outside(address));
        }
        if let Some(disk) = met_before(self.disks, DiskFile::excludes) {
            return Err(ClaimError::DiskTwice(disk.path.clone()));
        }
        let ports = self.network.map_or(&[][..], |network| &network.publish);
        match met_before(ports, Publish::meets) {
            Some(port) => Err(ClaimError::PortTwice(*port)),
            None => Ok(()),
        }
    }

    /// What another node cannot have beside these, if it has or wants `other`.
    pub(crate) fn clash(&self, other: Claims<'_>) -> Option<Clash> {
        if let Some(address) = self.address().filter(|_| self.address() == other.address()) {
            return Some(Clash::Address(address));
        }
        let clashes = |one: &&DiskFile| other.disks.iter().any(|two| one.excludes(two));
        let disk = self.disks.iter().find(clashes)?;
        Some(Clash::Disk(disk.path.clone()))
    }
}

/// The first that cannot be had beside one before it.
fn met_before<T>(all: &[T], meet: impl Fn(&T, &T) -> bool) -> Option<&T> {
    let (_, found) = all.iter().enumerate().find(|(index, one)| {
        let before = &all[..*index];
        before.iter().any(|two| meet(one, two))
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
    fn addresses_are_had_once() {
        let (one, two) = (on("10.78.0.2"), on("10.78.0.3"));
        let wanted = of(Some(&one), &[]);
        assert_eq!(wanted.clash(of(Some(&two), &[])), None);
        assert_eq!(wanted.clash(of(None, &[])), None);
        let clash = wanted.clash(of(Some(&one), &[]));
        assert_eq!(clash, Some(Clash::Address([10, 78, 0, 2].into())));
        let none = Networking::default();
        assert_eq!(of(Some(&none), &[]).clash(of(Some(&none), &[])), None);
    }

    #[test]
    fn addresses_that_nodes_get_unasked_are_not_to_be_asked_for() {
        for address in [
            "10.78.0.0",
            "10.78.0.1",
            "10.78.1.0",
            "10.79.0.2",
            "127.0.0.1",
        ] {
            let refused = of(Some(&on(address)), &[]).are_possible();
            assert!(matches!(refused, Err(ClaimError::Outside(_))), "{address}");
        }
        for address in ["10.78.0.2", "10.78.0.255"] {
            assert!(of(Some(&on(address)), &[]).are_possible().is_ok());
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
            of(Some(&network), &[]).are_possible().is_ok()
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
    fn no_node_has_a_disk_twice_that_it_may_write_to() {
        let goes = |disks: &[DiskFile]| of(None, disks).are_possible().is_ok();
        assert!(goes(&[disk("/a", false), disk("/b", false)]));
        assert!(goes(&[disk("/a", true), disk("/a", true)]));
        assert!(!goes(&[
            disk("/a", true),
            disk("/b", true),
            disk("/a", false)
        ]));
    }

    #[test]
    fn disks_are_shared_by_readers_only() {
        let goes = |one, two| {
            let (mine, theirs) = ([disk("/a", one)], [disk("/b", false), disk("/a", two)]);
            of(None, &mine).clash(of(None, &theirs)).is_none()
        };
        assert!(goes(true, true));
        assert!(!goes(true, false) && !goes(false, true) && !goes(false, false));
    }
}
