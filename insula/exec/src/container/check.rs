//! What keeps a container from being moved, as far as that can be told before.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;

use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_agent::processor::Processor;
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::NodeRecord;
use insula_node::isolation::Isolation;

use super::ask::{TIMEOUT, ask, unanswered};
use super::processes::check_is_whole;
use super::record::ContainerRecord;
use super::start::check_node;
use crate::agent::Location;

/// Checks a container and the two kernels of its move. Returns the folder that will be its root if it moves to the base.
pub(super) fn check(
    driver: &Driver,
    record: &ContainerRecord,
    target: &Location,
) -> Result<Option<PathBuf>, Error> {
    let name = &record.name;
    if record.node == *target {
        return Err(not_moved(name)
            .because(format!("it is on '{target}' already"))
            .unchanged());
    }
    check_is_whole(record)?;
    let rootfs = check_roots(driver, record, target)?;
    let context = |error: Error| {
        let what = format!("the container '{name}' cannot be moved");
        error.context(what).unchanged()
    };
    check_nodes(driver, &record.node, target).map_err(context)?;
    check_container(driver, &record.node, name).map_err(context)?;
    Ok(rootfs)
}

/// Checks that a container finds its files and its network where it is moved to. Returns the folder that will be its
/// root on the base.
fn check_roots(
    driver: &Driver,
    record: &ContainerRecord,
    target: &Location,
) -> Result<Option<PathBuf>, Error> {
    let name = &record.name;
    let of = |node: &Name| check_node(driver, node).map(|node| node.record);
    match (&record.node, target) {
        (Location::Node(here), Location::Node(there)) => {
            let (here, there) = (of(here)?, of(there)?);
            let is_same =
                (&here.spec.rootfs, here.spec.overlay) == (&there.spec.rootfs, there.spec.overlay);
            check_target(record, &there, is_same, target).map(|()| None)
        }
        (Location::Base, Location::Node(there)) => {
            let there = of(there)?;
            let is_same = folder(&there).is_some() && folder(&there) == record.rootfs;
            check_target(record, &there, is_same, target).map(|()| None)
        }
        (Location::Node(here), Location::Base) => {
            let here = of(here)?;
            if here.spec.isolation != Isolation::default() {
                return Err(is_confined(name, &record.node));
            }
            let network = here
                .network
                .as_ref()
                .and_then(|network| network.named.as_ref());
            if network.is_some() && record.address.is_some() {
                return Err(other_network(name, target));
            }
            let folder = folder(&here).ok_or_else(|| other_root(name, target))?;
            Ok(Some(folder))
        }
        (Location::Base, Location::Base) => Ok(None),
    }
}

/// The folder of the base that is a node's root.
fn folder(node: &NodeRecord) -> Option<PathBuf> {
    let path = node.spec.rootfs.as_ref()?.canonicalize().ok()?;
    path.is_dir().then_some(path)
}

fn check_target(
    record: &ContainerRecord,
    there: &NodeRecord,
    has_root: bool,
    target: &Location,
) -> Result<(), Error> {
    if !has_root {
        return Err(other_root(&record.name, target));
    }
    let Some(address) = record.address else {
        return Ok(());
    };
    match &there.network {
        None => Err(no_network(&record.name, target)),
        Some(network) if !network.link(0).network.contains(address) => {
            Err(other_network(&record.name, target))
        }
        Some(_) => Ok(()),
    }
}

/// Checks whether two kernels have what moves from one to the other need.
///
/// # Errors
/// What one of them lacks, or that its agent does not answer.
pub(crate) fn check_nodes(driver: &Driver, from: &Location, to: &Location) -> Result<(), Error> {
    // CRIU tries each kernel once, which takes a while: both at the same time.
    let (source, target) = thread::scope(|scope| {
        let target = scope.spawn(|| check_node_alone(driver, to));
        let source = check_node_alone(driver, from);
        let target = target.join();
        (source, target.unwrap_or_else(|panic| resume_unwind(panic)))
    });
    source.and(target)?;
    check_processor(driver, to, &processor(driver, from)?)
}

/// Checks whether programs there can use what of the processor others may use already.
///
/// # Errors
/// What it lacks, or that its agent does not answer.
pub(super) fn check_processor(
    driver: &Driver,
    to: &Location,
    used: &Processor,
) -> Result<(), Error> {
    let lacks = processor(driver, to)?.lacks(used);
    match lacks.is_empty() {
        true => Ok(()),
        false => Err(lacking(to, &lacks).hint(format!(
            "its programs may use that: start '{to}' with a command line that leaves it enabled"
        ))),
    }
}

/// Checks whether a kernel and its user space have what every move needs.
///
/// # Errors
/// What it lacks, or that its agent does not answer.
pub(crate) fn check_node_alone(driver: &Driver, node: &Location) -> Result<(), Error> {
    match one(driver, node, ContainerRequest::Lacks)? {
        ContainerAnswer::Lacks(lacks) if !lacks.is_empty() => Err(lacking(node, &lacks)),
        _ => Ok(()),
    }
}

/// Checks what a container that runs has open.
///
/// # Errors
/// What of it cannot be moved, or that its node's agent does not answer.
pub(crate) fn check_container(driver: &Driver, node: &Location, name: &Name) -> Result<(), Error> {
    let request = ContainerRequest::Obstacles(name.to_string());
    match one(driver, node, request)? {
        ContainerAnswer::Lacks(found) if !found.is_empty() => {
            Err(Error::new(format!("it has {}", joined(&found))))
        }
        _ => Ok(()),
    }
}

pub(super) fn processor(driver: &Driver, node: &Location) -> Result<Processor, Error> {
    match one(driver, node, ContainerRequest::Processor)? {
        ContainerAnswer::Processor(processor) => Ok(processor),
        _ => Err(unanswered(node)),
    }
}

/// Memory of a container that is copied when it is moved, in bytes; 0 if its agent is an older one, which cannot
/// tell.
pub(super) fn memory(driver: &Driver, record: &ContainerRecord) -> u64 {
    let request = ContainerRequest::Memory(record.name.to_string());
    match one(driver, &record.node, request) {
        Ok(ContainerAnswer::Memory(bytes)) => bytes,
        _ => 0,
    }
}

fn one(
    driver: &Driver,
    at: &Location,
    request: ContainerRequest,
) -> Result<ContainerAnswer, Error> {
    ask(at, &at.connect(driver)?, TIMEOUT, request)
}

pub(super) fn not_moved(name: &Name) -> Error {
    Error::new(format!("the container '{name}' cannot be moved"))
}

fn other_root(name: &Name, target: &Location) -> Error {
    not_moved(name)
        .because(format!("{} has another root file system", target.kernel()))
        .unchanged()
        .hint("the root is to be the same --rootfs there, with the base one of its folders")
}

fn is_confined(name: &Name, node: &Location) -> Error {
    not_moved(name)
        .because(format!(
            "{} is confined, and its programs would have root's rights on the base",
            node.kernel()
        ))
        .unchanged()
}

fn no_network(name: &Name, target: &Location) -> Error {
    not_moved(name)
        .because(format!("{} has no network", target.kernel()))
        .unchanged()
        .hint("start it with --network")
}

fn other_network(name: &Name, target: &Location) -> Error {
    not_moved(name)
        .because(format!("{} is on another network", target.kernel()))
        .unchanged()
        .hint("`insula network ls` shows who is on which")
}

fn lacking(at: &Location, lacks: &[String]) -> Error {
    Error::new(format!("{} lacks {}", at.kernel(), joined(lacks)))
}

/// What a node tells is not trusted.
fn joined(texts: &[String]) -> String {
    let texts: Vec<_> = texts
        .iter()
        .map(|one| one.escape_debug().to_string())
        .collect();
    texts.join(", ")
}
