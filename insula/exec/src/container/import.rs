//! Restoring a container of a folder: one that Insula has written, or processes that plain CRIU has dumped.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use insula_agent::Exec;
use insula_agent::container::{ContainerSpec, Images, Imported, MoveStep};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_checkpoint::{Checkpoint, Form};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::attachment::Publish;

use super::base_agent;
use super::check::{check_node_alone, check_processor};
use super::peer::Peer;
use super::ports;
use super::record::{ContainerRecord, Records};
use super::start::{ContainerNetwork, Found, check_location, check_name};
use crate::agent::Location;

/// A container to be restored.
#[derive(Clone, Copy, Debug)]
pub struct RestoreRequest<'a> {
    /// The folder with its images.
    pub folder: &'a Path,
    /// Where.
    pub location: &'a Location,
    /// The folder that is its root on the base, `/` by default.
    pub rootfs: Option<&'a Path>,
    /// Its name, if it is to have another one, or is one of plain CRIU.
    pub name: Option<&'a Name>,
    /// Ports of the base that lead to it, instead of those that did so before.
    pub publish: &'a [Publish],
    /// Whether its TCP connections are restored as closed ones.
    pub close_connections: bool,
}

/// Restores a container, and has it go on.
///
/// # Errors
/// When the folder is damaged, or it cannot be restored; nothing of it is left there.
pub fn restore(
    driver: &Driver,
    root: &Root,
    request: &RestoreRequest<'_>,
) -> Result<ContainerRecord, Error> {
    let folder = request.folder;
    let checkpoint = Checkpoint::open(folder);
    let checkpoint = checkpoint.map_err(|error| not_restorable(folder).because(error))?;
    let name = name(&checkpoint, request)?;
    let there = check_location(driver, request.location, request.rootfs)?;
    check(driver, request.location, &checkpoint)?;
    let record = reserve(driver, root, (&name, &there, &checkpoint), request)?;
    let imported = imported(&checkpoint, &record, request.close_connections);
    let restored = ports::open(&record).and_then(|()| {
        let mut to = Peer::connect(driver, request.location)?;
        to.import(imported, record.rootfs.as_deref(), &checkpoint)?;
        to.step(MoveStep::Resume)
    });
    match restored {
        Ok(()) => Ok(record),
        Err(error) => {
            Records::lock(root)?.remove(&name)?;
            ports::closed(root, &record);
            if *request.location == Location::Base {
                base_agent::end_if_nobody_comes(root);
            }
            let context = format!("the container '{name}' was not restored");
            let error = error.context(context).nothing_kept();
            Err(
                match checkpoint.has_connections() && !request.close_connections {
                    true => error.hint("--tcp-close restores it with its TCP connections closed"),
                    false => error,
                },
            )
        }
    }
}

/// The name that it will have.
fn name(checkpoint: &Checkpoint, request: &RestoreRequest<'_>) -> Result<Name, Error> {
    if let Some(name) = request.name {
        return Ok(name.clone());
    }
    let described = checkpoint.description().map(|one| one.name.parse());
    match described {
        Some(Ok(name)) => Ok(name),
        _ => Err(not_restorable(request.folder)
            .because("it has no name".to_owned())
            .hint("give it one by --name")),
    }
}

/// Checks whether a node has what it needs.
fn check(driver: &Driver, node: &Location, checkpoint: &Checkpoint) -> Result<(), Error> {
    let checked = check_node_alone(driver, node).and_then(|()| match checkpoint.description() {
        Some(description) => check_processor(driver, node, &description.processor),
        None => Ok(()),
    });
    checked.map_err(|error| {
        let what = format!("no container can be restored on '{node}'");
        error.context(what).untouched()
    })
}

/// Writes its record, with which it has a name and an address.
fn reserve(
    driver: &Driver,
    root: &Root,
    (name, there, checkpoint): (&Name, &Found, &Checkpoint),
    request: &RestoreRequest<'_>,
) -> Result<ContainerRecord, Error> {
    let records = Records::lock(root)?;
    check_name(driver, root, name)?;
    let described = checkpoint.description();
    let address = match there.network {
        Some(network) => Some(address(
            (driver, root),
            &records,
            checkpoint,
            (request, network),
        )?),
        None => None,
    };
    let publish = publish(checkpoint, request)?;
    ports::check(&publish, address.is_some())?;
    let record = ContainerRecord {
        name: name.clone(),
        node: request.location.clone(),
        node_id: there.node_id,
        moving_to: None,
        lwk_node: None,
        rootfs: there.rootfs.clone(),
        address,
        publish,
        command: described.map_or_else(Vec::new, |one| one.command.clone()),
        created_unix_s: described.map_or_else(now_unix_s, |one| one.created_unix_s),
    };
    records.write(&record)?;
    Ok(record)
}

/// The ports that it had, or others.
fn publish(checkpoint: &Checkpoint, request: &RestoreRequest<'_>) -> Result<Vec<Publish>, Error> {
    let described = checkpoint.description().map(|one| &one.publish[..]);
    match (request.publish, described) {
        ([], Some(described)) => described
            .iter()
            .map(|port| port.parse())
            .collect::<Result<_, _>>()
            .map_err(|error| not_restorable(request.folder).because(error)),
        (given, _) => Ok(given.to_vec()),
    }
}

/// The address that it had, or another one if its connections do not need that.
fn address(
    (driver, root): (&Driver, &Root),
    records: &Records<'_>,
    checkpoint: &Checkpoint,
    (request, network): (&RestoreRequest<'_>, ContainerNetwork),
) -> Result<Ipv4Addr, Error> {
    let old = checkpoint.description().and_then(|one| one.address);
    let current = |wanted| network.current(driver, root, wanted);
    let network = current(old).or_else(|_| current(None))?;
    match old {
        Some(old) if records.is_free(network, old)? => Ok(old),
        Some(old) if checkpoint.has_connections() && !request.close_connections => {
            let why = match network.contains(old) {
                true => "which is taken".to_owned(),
                false => format!("which is not of the network {network} that nodes have now"),
            };
            Err(not_restorable(request.folder)
                .because(format!("its TCP connections need its address {old}, {why}"))
                .hint("--tcp-close restores it with its TCP connections closed"))
        }
        _ => records.free_address(network),
    }
}

fn imported(
    checkpoint: &Checkpoint,
    record: &ContainerRecord,
    close_connections: bool,
) -> Imported {
    let words = record.command.iter().map(|word| word.clone().into_bytes());
    let output = checkpoint.description().map(|one| one.output.clone());
    Imported {
        spec: ContainerSpec {
            name: record.name.to_string(),
            address: record.address,
            exec: Exec {
                words: words.collect(),
                ..Exec::default()
            },
        },
        images: match (checkpoint.form(), output) {
            (Form::Container, Some(output)) => Images::Container(output),
            _ => Images::Tree,
        },
        close_connections,
    }
}

fn now_unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

fn not_restorable(folder: &Path) -> Error {
    Error::new(format!(
        "no container can be restored of {}",
        folder.display()
    ))
    .untouched()
}
