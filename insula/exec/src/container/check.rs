//! What keeps a container from being moved, as far as that can be told before.

use std::panic::resume_unwind;
use std::thread;

use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_agent::processor::Processor;
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;

use super::ask::{TIMEOUT, ask, unanswered};
use super::record::ContainerRecord;
use super::start::check_node;
use crate::agent::to_agent;

/// Checks a container and the two nodes of its move.
pub(super) fn check(driver: &Driver, record: &ContainerRecord, target: &Name) -> Result<(), Error> {
    let name = &record.name;
    if record.node == *target {
        return Err(not_moved(name)
            .because(format!("it is on '{target}' already"))
            .unchanged());
    }
    let there = check_node(driver, target)?.record;
    let here = check_node(driver, &record.node)?.record;
    if (&here.spec.rootfs, here.spec.overlay) != (&there.spec.rootfs, there.spec.overlay) {
        return Err(other_root(name, target));
    }
    if record.address.is_some() && there.network.is_none() {
        return Err(no_network(name, target));
    }
    let context = |error: Error| {
        let what = format!("the container '{name}' cannot be moved");
        error.context(what).unchanged()
    };
    check_nodes(driver, &record.node, target).map_err(context)?;
    check_container(driver, &record.node, name).map_err(context)
}

/// Checks whether two nodes have what moves from one to the other need.
///
/// # Errors
/// What one of them lacks, or that its agent does not answer.
pub(crate) fn check_nodes(driver: &Driver, from: &Name, to: &Name) -> Result<(), Error> {
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

/// Checks whether a node's programs can use what of the processor others may use already.
///
/// # Errors
/// What it lacks, or that its agent does not answer.
pub(super) fn check_processor(driver: &Driver, to: &Name, used: &Processor) -> Result<(), Error> {
    let lacks = processor(driver, to)?.lacks(used);
    match lacks.is_empty() {
        true => Ok(()),
        false => Err(lacking(to, &lacks).hint(format!(
            "its programs may use that: start '{to}' with a command line that leaves it enabled"
        ))),
    }
}

/// Checks whether a node has what every move needs.
///
/// # Errors
/// What it lacks, or that its agent does not answer.
pub(crate) fn check_node_alone(driver: &Driver, node: &Name) -> Result<(), Error> {
    match one(driver, node, ContainerRequest::Lacks)? {
        ContainerAnswer::Lacks(lacks) if !lacks.is_empty() => Err(lacking(node, &lacks)),
        _ => Ok(()),
    }
}

/// Checks what a container that runs has open.
///
/// # Errors
/// What of it cannot be moved, or that its node's agent does not answer.
pub(crate) fn check_container(driver: &Driver, node: &Name, name: &Name) -> Result<(), Error> {
    let request = ContainerRequest::Obstacles(name.to_string());
    match one(driver, node, request)? {
        ContainerAnswer::Lacks(found) if !found.is_empty() => {
            Err(Error::new(format!("it has {}", joined(&found))))
        }
        _ => Ok(()),
    }
}

pub(super) fn processor(driver: &Driver, node: &Name) -> Result<Processor, Error> {
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

fn one(driver: &Driver, node: &Name, request: ContainerRequest) -> Result<ContainerAnswer, Error> {
    ask(node, &to_agent(driver, node)?, TIMEOUT, request)
}

pub(super) fn not_moved(name: &Name) -> Error {
    Error::new(format!("the container '{name}' cannot be moved"))
}

fn other_root(name: &Name, target: &Name) -> Error {
    not_moved(name)
        .because(format!("the node '{target}' has another root file system"))
        .unchanged()
        .hint("start both nodes with the same --rootfs")
}

fn no_network(name: &Name, target: &Name) -> Error {
    not_moved(name)
        .because(format!("the node '{target}' has no network"))
        .unchanged()
        .hint("start it with --network")
}

fn lacking(node: &Name, lacks: &[String]) -> Error {
    Error::new(format!("the node '{node}' lacks {}", joined(lacks)))
}

/// What a node tells is not trusted.
fn joined(texts: &[String]) -> String {
    let texts: Vec<_> = texts
        .iter()
        .map(|one| one.escape_debug().to_string())
        .collect();
    texts.join(", ")
}
