//! Starting containers.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_agent::Exec;
use insula_agent::container::{ContainerRequest, ContainerSpec};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::{Name, text};
use insula_node::attachment::Publish;
use insula_node::{self as node, Handle, NodeRecord};

use super::ask::{TIMEOUT, ask};
use super::ports;
use super::record::{ContainerRecord, Records, read};
use crate::agent::to_agent;

/// A container to start.
#[derive(Clone, Copy, Debug)]
pub struct StartRequest<'a> {
    /// Its name.
    pub name: &'a Name,
    /// The node.
    pub node: &'a Name,
    /// Its program's path in the node, or its name in `PATH` there, then its arguments.
    pub words: &'a [OsString],
    /// Additional environment variables.
    pub environment: &'a [(OsString, OsString)],
    /// Ports of the base that lead to it.
    pub publish: &'a [Publish],
    /// Its working directory, `/` by default.
    pub directory: Option<&'a OsString>,
}

/// Starts a container in a Linux node, with an address of its own if the node has a network.
///
/// # Errors
/// When the name is taken, the node cannot have containers, or its agent cannot start it; nothing
/// was kept.
pub fn start(
    driver: &Driver,
    root: &Root,
    request: &StartRequest<'_>,
) -> Result<ContainerRecord, Error> {
    let records = Records::lock(root)?;
    let StartRequest { name, node, .. } = *request;
    check_name(driver, root, name)?;
    let there = check_node(driver, node)?;
    ports::check(request.publish, there.record.network.is_some())?;
    let record = ContainerRecord {
        name: name.clone(),
        node: node.clone(),
        node_id: Some(there.id),
        moving_to: None,
        address: match there.record.network {
            Some(_) => Some(records.free_address()?),
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
    let stream = to_agent(driver, node)?;
    records.write(&record)?;
    let spec = request.spec(&record);
    let started = ports::open(&record)
        .and_then(|()| ask(node, &stream, TIMEOUT, ContainerRequest::Start(spec)));
    match started {
        Ok(_) => Ok(record),
        Err(error) => {
            records.remove(name)?;
            ports::closed(root, &record);
            Err(error
                .context(format!("the container '{name}' cannot be started"))
                .nothing_kept())
        }
    }
}

/// Checks that no container and no node has a name.
pub(super) fn check_name(driver: &Driver, root: &Root, name: &Name) -> Result<(), Error> {
    if let Some(other) = read(root, name)? {
        return Err(taken(
            name,
            &format!("a container on the node '{}'", other.node),
        ));
    }
    let is_it = |one: &Handle| text(&one.info.name) == name.as_str();
    match node::all(driver)?.iter().any(is_it) {
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
