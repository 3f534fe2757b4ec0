//! The processes of containers on the base, which can go on on a node of the lightweight kernel. The container
//! itself stays on the base, which executes their system calls.

use insula_agent::container::{ContainerAnswer, ContainerRequest};
use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;

use super::ask::{TIMEOUT, ask, unanswered};
use super::record::{self, ContainerRecord, Records};
use super::transfer::as_it_is;
use crate::agent::Location;

/// Has the processes of a container on the base moved to a node of the lightweight kernel, or back, while nobody
/// else moves it. `move_all` is given what lists their ids, `is_there` tells whether a process is on a node. From
/// before the move until none is there the record says so, also if this process is killed.
///
/// # Errors
/// That of `move_all`, or when the container is not on the base or does not run.
pub fn move_processes<T>(
    driver: &Driver,
    root: &Root,
    (name, to_node): (&Name, Option<&Name>),
    is_there: impl Fn(i32) -> bool,
    move_all: impl FnOnce(&dyn Fn() -> Result<Vec<i32>, Error>) -> Result<T, Error>,
) -> Result<T, Error> {
    let _lock = record::lock_moves(root)?;
    let mut record = as_it_is(driver, root, name)?;
    check_is_on_base(&record)?;
    if let Some(node) = to_node {
        record.lwk_node = Some(node.clone());
        Records::lock(root)?.write(&record)?;
    }
    let moved = move_all(&|| processes(driver, &record));
    // Of one that does not run any more nothing is there.
    let left = processes(driver, &record).unwrap_or_default();
    if !left.into_iter().any(is_there) {
        record.lwk_node = None;
    }
    Records::lock(root)?.write(&record)?;
    moved
}

/// The ids of the processes of a container on the base.
///
/// # Errors
/// When it is not there, or does not run.
pub fn processes(driver: &Driver, record: &ContainerRecord) -> Result<Vec<i32>, Error> {
    check_is_on_base(record)?;
    processes_at(driver, &record.node, &record.name)
}

/// The ids of the processes of a container there, as its kernel knows them.
///
/// # Errors
/// When it is not there, or does not run.
pub fn processes_at(driver: &Driver, at: &Location, name: &Name) -> Result<Vec<i32>, Error> {
    let stream = at.connect_at_once(driver)?;
    let request = ContainerRequest::Processes(name.to_string());
    match ask(at, &stream, TIMEOUT, request)? {
        ContainerAnswer::Processes(pids) => Ok(pids),
        _ => Err(unanswered(at)),
    }
}

fn check_is_on_base(record: &ContainerRecord) -> Result<(), Error> {
    let name = &record.name;
    match &record.node {
        Location::Base => Ok(()),
        Location::Node(node) => Err(Error::new(format!("the container '{name}' is on '{node}'"))
            .unchanged()
            .hint(format!(
                "only from the base its processes go to the lightweight kernel: `insula move {name} base` first"
            ))),
    }
}

/// Checks that no node of the lightweight kernel has a container's processes: what those are there CRIU cannot dump.
pub(super) fn check_is_whole(record: &ContainerRecord) -> Result<(), Error> {
    let name = &record.name;
    match &record.lwk_node {
        None => Ok(()),
        Some(node) => Err(Error::new(format!(
            "the processes of the container '{name}' are on '{node}'"
        ))
        .unchanged()
        .hint(format!("`insula move {name} base` first"))),
    }
}
