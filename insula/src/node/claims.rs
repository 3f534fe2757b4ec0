//! What no two nodes can have: an address of the network, or a disk that one of them may write to.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::{FindError, RunRequest, all};
use crate::driver::Driver;
use crate::name;
use crate::virtio::{DiskFile, Networking, Publish, free_addresses};

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
    let wanted = Claims {
        network: request.network.as_ref(),
        disks: &request.disks,
    };
    wanted.are_possible()?;
    all(driver)?.iter().try_for_each(|handle| {
        let there = handle.record.as_ref().map(|record| Claims {
            network: record.network.as_ref(),
            disks: &record.disks,
        });
        match there.and_then(|there| wanted.clash(there)) {
            Some(clash) => Err(clash.with(&name::text(&handle.info.name))),
            None => Ok(()),
        }
    })
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
