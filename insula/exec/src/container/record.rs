//! Records of containers: files in the command's private folder, which is empty after a boot.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use insula_agent::network::Network;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::state::{self, AtomicFile, Lock, RUN};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::attachment::Publish;
use serde::{Deserialize, Serialize};

use super::settle::locate;
use crate::agent::Location;

/// Folder of the records, in [`RUN`].
const FOLDER: &str = "containers";
/// Name of the lock held while records are changed.
const LOCK: &str = "containers.lock";
/// Name of the lock held during a move.
const MOVE_LOCK: &str = "moves.lock";
const ENDING: &str = ".json";
/// Numbers of addresses of their network that containers can have. Nodes have others.
const NUMBERS: RangeInclusive<u16> = 0xff01..=0xfffe;

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ContainerRecord {
    /// Its name.
    pub name: Name,
    /// Where it is; a node by its name of now once it is located (`settle::locate`).
    pub node: Location,
    /// A node by its id, which it keeps when it gets another name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<u32>,
    /// Where it is being moved to, from the moment at which it may be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<Location>,
    /// The node of the lightweight kernel on which its processes, which are the base's, go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lwk_node: Option<Name>,
    /// The folder that is its root when it is on the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<PathBuf>,
    /// Its address, if it is on the network of nodes and base.
    pub address: Option<Ipv4Addr>,
    /// Ports of the base that lead to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<Publish>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Time of its start, in seconds since 1970.
    pub created_unix_s: u64,
}

/// All records, and the lock without which none is changed.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    root: &'a Root,
    _lock: Lock,
}

/// The container of that name.
///
/// # Errors
/// When its record cannot be read.
pub(super) fn read(root: &Root, name: &Name) -> Result<Option<ContainerRecord>, Error> {
    match fs::read(path(root, name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(name).because(error)),
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => Err(unreadable(name).because(error)),
        },
    }
}

/// Names of all containers; none without the right to ask.
#[must_use]
pub fn names(root: &Root) -> Vec<String> {
    let files = root.names(&format!("{RUN}/{FOLDER}")).into_iter();
    files
        .filter_map(|name| Some(name.strip_suffix(ENDING)?.to_owned()))
        .collect()
}

/// All containers, by name.
///
/// # Errors
/// When a record cannot be read.
pub(super) fn all(root: &Root) -> Result<Vec<ContainerRecord>, Error> {
    let names = names(root).into_iter();
    let mut found = Vec::new();
    for name in names.filter_map(|name| name.parse::<Name>().ok()) {
        // One that has just been removed is left out.
        found.extend(read(root, &name)?);
    }
    Ok(found)
}

/// Where the records lie.
pub(super) fn folder(root: &Root) -> PathBuf {
    root.path(&format!("{RUN}/{FOLDER}"))
}

fn path(root: &Root, name: &Name) -> PathBuf {
    folder(root).join(format!("{name}{ENDING}"))
}

impl<'a> Records<'a> {
    /// Waits until no other command changes records.
    pub(crate) fn lock(root: &'a Root) -> Result<Self, Error> {
        let lock = state::lock(root, LOCK).map_err(not_kept)?;
        Ok(Self { root, _lock: lock })
    }

    /// Writes a record: a new one, or in place of the one of that name.
    pub(crate) fn write(&self, record: &ContainerRecord) -> Result<(), Error> {
        let write = || -> io::Result<()> {
            let path = path(self.root, &record.name);
            let folder = path.parent().unwrap_or(&path);
            fs::create_dir_all(folder)?;
            let file = AtomicFile::create(folder)?;
            file.file().write_all(&serde_json::to_vec(record)?)?;
            file.persist(&path)
        };
        write().map_err(not_kept)
    }

    /// All records, with their nodes' names of now; without those whose nodes were removed.
    pub(crate) fn located(&self, driver: &Driver) -> Result<Vec<ContainerRecord>, Error> {
        let located = all(self.root)?.into_iter();
        let located = located.filter_map(|record| locate(driver, record).transpose());
        located.collect()
    }

    /// Removes a record.
    pub(super) fn remove(&self, name: &Name) -> Result<(), Error> {
        match fs::remove_file(path(self.root, name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(not_kept(error)),
            _ => Ok(()),
        }
    }

    fn taken_addresses(&self) -> Result<BTreeSet<Ipv4Addr>, Error> {
        let all = all(self.root)?.into_iter();
        Ok(all.filter_map(|record| record.address).collect())
    }

    /// Whether a container can have this address on a network, and none has it.
    pub(super) fn is_free(&self, network: Network, wanted: Ipv4Addr) -> Result<bool, Error> {
        let can_be = NUMBERS
            .map(|number| network.nth(number))
            .any(|one| one == wanted);
        Ok(can_be && !self.taken_addresses()?.contains(&wanted))
    }

    /// An address of a network that no container has.
    pub(super) fn free_address(&self, network: Network) -> Result<Ipv4Addr, Error> {
        let taken = self.taken_addresses()?;
        let mut addresses = NUMBERS.map(|number| network.nth(number));
        let free = addresses.find(|address| !taken.contains(address));
        free.ok_or_else(no_address)
    }
}

/// Waits until no container is being moved, and keeps others from it.
pub(crate) fn lock_moves(root: &Root) -> Result<Lock, Error> {
    state::lock(root, MOVE_LOCK).map_err(not_kept)
}

/// The same, unless one is being moved.
pub(super) fn try_lock_moves(root: &Root) -> Result<Option<Lock>, Error> {
    state::try_lock(root, MOVE_LOCK).map_err(not_kept)
}

fn unreadable(name: &Name) -> Error {
    Error::new(format!(
        "the record of the container '{name}' cannot be read"
    ))
    .untouched()
    .hint("it was started by another version of insula: use that one")
}

fn not_kept(error: io::Error) -> Error {
    Error::new("the records of containers cannot be changed")
        .because(error)
        .untouched()
}

fn no_address() -> Error {
    Error::new("all addresses of containers are taken")
        .untouched()
        .hint("remove one: `insula ps` lists them")
}

#[cfg(test)]
mod tests {
    use insula_base::root::fake::Tree;

    use super::*;

    const NETWORK: Network = Network::new(10, 78);

    fn record(name: &str, address: Option<Ipv4Addr>) -> ContainerRecord {
        ContainerRecord {
            lwk_node: None,
            rootfs: None,
            name: name.parse().unwrap(),
            node: "web".parse().unwrap(),
            node_id: Some(3),
            moving_to: None,
            address,
            publish: vec!["127.0.0.1:8080:80".parse().unwrap()],
            command: vec!["/bin/true".into()],
            created_unix_s: 1,
        }
    }

    #[test]
    fn records_read_back_and_have_addresses_of_their_own() {
        let tree = Tree::new(&[]);
        let root = tree.root();
        let records = Records::lock(&root).unwrap();
        let first = records.free_address(NETWORK).unwrap();
        assert!(records.is_free(NETWORK, first).unwrap());
        records.write(&record("one", Some(first))).unwrap();
        assert!(!records.is_free(NETWORK, first).unwrap());
        assert!(!records.is_free(NETWORK, [10, 78, 0, 2].into()).unwrap());
        let second = records.free_address(NETWORK).unwrap();
        assert_ne!(first, second);
        records.write(&record("two", Some(second))).unwrap();
        let name = "one".parse().unwrap();
        assert_eq!(
            read(&root, &name).unwrap(),
            Some(record("one", Some(first)))
        );
        records.remove(&name).unwrap();
        records.remove(&name).unwrap();
        assert_eq!(all(&root).unwrap(), [record("two", Some(second))]);
        assert_eq!(records.free_address(NETWORK).unwrap(), first);
    }

    #[test]
    fn a_damaged_record_is_told() {
        let tree = Tree::new(&[("/run/insula/containers/one.json", "{")]);
        let refused = read(&tree.root(), &"one".parse().unwrap()).unwrap_err();
        assert!(
            refused.to_string().contains("'one' cannot be read"),
            "{refused}"
        );
    }
}
