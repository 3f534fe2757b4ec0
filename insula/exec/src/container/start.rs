//! Starting containers.

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use insula_agent::Exec;
use insula_agent::container::{ContainerRequest, ContainerSpec};
use insula_agent::network::Network;
use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::{Name, text};
use insula_node::attachment::Publish;
use insula_node::{self as node, BASE, Handle, NodeRecord, current_network};

use super::ask::{TIMEOUT, ask};
use super::base_agent;
use super::ports;
use super::record::{ContainerRecord, Records, read};
use crate::agent::{Location, in_root};

/// A container to start.
#[derive(Clone, Copy, Debug)]
pub struct StartRequest<'a> {
    /// Its name.
    pub name: &'a Name,
    /// Where.
    pub location: &'a Location,
    /// The folder that is its root on the base, `/` by default; in a node it has the node's.
    pub rootfs: Option<&'a Path>,
    /// Its program's path in the node, or its name in `PATH` there, then its arguments.
    pub words: &'a [OsString],
    /// Additional environment variables.
    pub environment: &'a [(OsString, OsString)],
    /// Ports of the base that lead to it.
    pub publish: &'a [Publish],
    /// Its working directory, `/` by default.
    pub directory: Option<&'a OsString>,
}

/// Starts a container on the base or in a Linux node, with an address of its own unless the node has no network.
///
/// # Errors
/// When the name is taken, the node cannot have containers, or the agent there cannot start it; nothing
/// was kept.
pub fn start(
    driver: &Driver,
    root: &Root,
    request: &StartRequest<'_>,
) -> Result<ContainerRecord, Error> {
    let records = Records::lock(root)?;
    let StartRequest { name, location, .. } = *request;
    check_name(driver, root, name)?;
    let there = check_location(driver, location, request.rootfs)?;
    ports::check(request.publish, there.network.is_some())?;
    let record = ContainerRecord {
        name: name.clone(),
        node: location.clone(),
        node_id: there.node_id,
        moving_to: None,
        lwk_node: None,
        rootfs: there.rootfs,
        address: match &there.network {
            Some(network) => Some(records.free_address(network.current(driver, root, None)?)?),
            None => None,
        },
        publish: request.publish.to_vec(),
        command: request
            .words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        created_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs()),
    };
    let stream = location.connect(driver)?;
    records.write(&record)?;
    let spec = ContainerRequest::Start(request.spec(&record));
    let spec = in_root(location, record.rootfs.as_deref(), spec);
    let started = ports::open(&record).and_then(|()| ask(location, &stream, TIMEOUT, spec));
    match started {
        Ok(_) => Ok(record),
        Err(error) => {
            records.remove(name)?;
            drop(records);
            ports::closed(root, &record);
            if *location == Location::Base {
                base_agent::end_if_nobody_comes(root);
            }
            Err(error
                .context(format!("the container '{name}' cannot be started"))
                .nothing_kept())
        }
    }
}

/// Checks that no container and no node has a name.
pub(super) fn check_name(driver: &Driver, root: &Root, name: &Name) -> Result<(), Error> {
    if name.as_str() == BASE {
        return Err(taken(name, "the base"));
    }
    if let Some(other) = read(root, name)? {
        return Err(taken(
            name,
            &format!("a container on {}", other.node.kernel()),
        ));
    }
    let is_it = |one: &Handle| text(&one.info.name) == name.as_str();
    let is_created = node::created_names(root).contains(name);
    match is_created || node::all(driver)?.iter().any(is_it) {
        true => Err(taken(name, "a node")),
        false => Ok(()),
    }
}

impl StartRequest<'_> {
    fn spec(&self, record: &ContainerRecord) -> ContainerSpec {
        let bytes = |text: &OsString| text.clone().into_vec();
        let environment = self.environment.iter();
        ContainerSpec {
            name: record.name.to_string(),
            address: record.address,
            exec: Exec {
                words: self.words.iter().map(bytes).collect(),
                environment: environment
                    .map(|(name, value)| (bytes(name), bytes(value)))
                    .collect(),
                directory: self.directory.map(bytes),
                ..Exec::default()
            },
        }
    }
}

/// What containers find where they are started or restored.
#[derive(Debug)]
pub(super) struct Found {
    /// The id of the node.
    pub(super) node_id: Option<u32>,
    /// Their network, if they have one.
    pub(super) network: Option<ContainerNetwork>,
    /// The folder that is their root on the base.
    pub(super) rootfs: Option<PathBuf>,
}

/// The network of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerNetwork {
    /// That of all nodes, which is chosen when the first has one.
    OfAll,
    /// That of their node.
    Of(Network),
}

impl ContainerNetwork {
    /// Its addresses, for a container that wants this one.
    pub(super) fn current(
        self,
        driver: &Driver,
        root: &Root,
        wanted: Option<Ipv4Addr>,
    ) -> Result<Network, Error> {
        match self {
            Self::OfAll => current_network(driver, root, wanted),
            Self::Of(network) => Ok(network),
        }
    }
}

fn network_of(node: &NodeRecord) -> Option<ContainerNetwork> {
    let network = node.network.as_ref()?;
    Some(match &network.named {
        Some(named) => ContainerNetwork::Of(named.subnet.0),
        None => ContainerNetwork::OfAll,
    })
}

/// Checks that there can be containers, on the base with this folder as their root.
///
/// # Errors
/// Why not.
pub(super) fn check_location(
    driver: &Driver,
    location: &Location,
    rootfs: Option<&Path>,
) -> Result<Found, Error> {
    match (location, rootfs) {
        (Location::Base, rootfs) => Ok(Found {
            node_id: None,
            network: Some(ContainerNetwork::OfAll),
            rootfs: Some(check_root(rootfs.unwrap_or(Path::new("/")))?),
        }),
        (Location::Node(name), Some(_)) => Err(own_root(name)),
        (Location::Node(name), None) => {
            let there = check_node(driver, name)?;
            Ok(Found {
                node_id: Some(there.id),
                network: network_of(&there.record),
                rootfs: None,
            })
        }
    }
}

/// A folder that can be a root, by its own path.
pub(super) fn check_root(path: &Path) -> Result<PathBuf, Error> {
    let found = path.canonicalize().and_then(|path| match path.is_dir() {
        true => Ok(path),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    found.map_err(|error| {
        Error::new(format!("{} cannot be a container's root", path.display()))
            .because(error)
            .about("rootfs")
            .untouched()
    })
}

/// A node that can have containers.
#[derive(Debug)]
pub(crate) struct ContainerNode {
    /// Its id.
    pub(crate) id: u32,
    /// Its record.
    pub(crate) record: NodeRecord,
}

/// The node of that name, which can have containers.
///
/// # Errors
/// When it cannot.
pub(crate) fn check_node(driver: &Driver, name: &Name) -> Result<ContainerNode, Error> {
    let handle = node::find(driver, name)?;
    let id = handle.info.id;
    let record = handle
        .record
        .ok_or_else(|| node::no_record(name.as_str()).untouched())?;
    if !record.is_linux() {
        return Err(other_kernel(name));
    }
    if !record.initrd.as_deref().is_some_and(insula_image::is_agent) {
        return Err(no_agent(name));
    }
    match record.spec.rootfs {
        Some(_) => Ok(ContainerNode { id, record }),
        None => Err(no_root(name)),
    }
}

fn own_root(node: &Name) -> Error {
    Error::new(format!("containers of '{node}' have the root of the node"))
        .about("rootfs")
        .untouched()
        .hint("leave out --rootfs, which is for containers on the base")
}

fn taken(name: &Name, by: &str) -> Error {
    Error::new(format!("the name '{name}' is that of {by}"))
        .untouched()
        .hint("choose another: `insula ps` lists them")
}

fn other_kernel(node: &Name) -> Error {
    Error::new(format!(
        "the node '{node}' runs the lightweight kernel, which has no containers"
    ))
    .untouched()
    .hint("use a Linux node, or run the program without --container")
}

fn no_agent(node: &Name) -> Error {
    Error::new(format!("the image of the node '{node}' has no agent"))
        .untouched()
        .hint("`insula image build` makes images with one")
}

fn no_root(node: &Name) -> Error {
    Error::new(format!(
        "the node '{node}' has no root file system for containers"
    ))
    .untouched()
    .hint("give it one with `insula run --rootfs`")
}
