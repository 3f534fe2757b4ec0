//! `insula move` of a container whose processes go to a node of the lightweight kernel, or come back.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::container::{self, Location, PreCopy, move_processes};
use insula_exec::program;
use insula_migrate::{GroupMoved, Processes, check_group, group_to_base, group_to_node};
use insula_node as node;

use super::super::cli::Move;
use super::super::{Context, Failure, output};

/// Whether a move is one of a container's processes, and not of the container: to a node of the lightweight kernel,
/// or back from there.
pub(super) fn are_meant(
    driver: &Driver,
    root: &Root,
    name: &Name,
    to: &Location,
) -> Result<bool, Error> {
    match to {
        Location::Base => {
            let record = container::find(Driver::open, root, name)?;
            Ok(record.is_some_and(|record| record.node == Location::Base))
        }
        Location::Node(node) => runs_lwk(driver, node),
    }
}

/// Whether a node runs the lightweight kernel.
pub(super) fn runs_lwk(driver: &Driver, node: &Name) -> Result<bool, Error> {
    let record = node::find(driver, node)?.record;
    Ok(record.is_some_and(|record| !record.is_linux()))
}

/// Moves them, or tells whether they can be moved.
pub(super) fn migrate(
    context: &Context,
    driver: &Driver,
    name: &Name,
    options: &Move,
) -> Result<(), Failure> {
    if options.pre_copy() != PreCopy::Auto {
        return Err(super::super::migrate::not_copied().into());
    }
    let is_back = options.name.as_str() == node::BASE;
    if options.check {
        let record = container::find(Driver::open, &context.root, name)?;
        let record = record.ok_or_else(|| container::no_container(name))?;
        let processes = || container::processes(driver, &record);
        match is_back {
            true if !processes()?.into_iter().any(is_there) => return Err(is_on_base().into()),
            true => {}
            false => check_group(driver, &processes, (&options.name, program::POLLS))?,
        }
        let to = &options.name;
        return output::line(&format!("container '{name}' can be moved to '{to}'"));
    }
    let moved = match is_back {
        true => move_processes(driver, &context.root, (name, None), is_there, back),
        false => to_node(driver, &context.root, name, &options.name),
    };
    let moved = moved.map_err(|error| {
        let what = format!("the container '{name}' was not moved to '{}'", options.name);
        error.context(what)
    })?;
    told(name, &options.name, &moved)
}

/// Moves all processes of a container on the base to a node, or none.
pub(super) fn to_node(
    driver: &Driver,
    root: &Root,
    name: &Name,
    node: &Name,
) -> Result<GroupMoved, Error> {
    let target = (node, program::POLLS);
    move_processes(driver, root, (name, Some(node)), is_there, |processes| {
        check_group(driver, processes, target)?;
        group_to_node(driver, processes, target)
    })
}

/// Whether a process is on a node; not one that has ended.
fn is_there(pid: i32) -> bool {
    insula_migrate::is_on_node(pid).unwrap_or(false)
}

fn is_on_base() -> Error {
    Error::new("it is on 'base' already").unchanged()
}

fn back(processes: Processes<'_>) -> Result<GroupMoved, Error> {
    let moved = group_to_base(processes)?;
    match moved.processes.is_empty() {
        true => Err(is_on_base()),
        false => Ok(moved),
    }
}

fn told(name: &Name, to: &Name, moved: &GroupMoved) -> Result<(), Failure> {
    let stopped_ms = moved.stopped_for.as_secs_f64() * 1e3;
    output::line(&format!(
        "container '{name}' runs on '{to}': {} processes, {} threads, stopped for {stopped_ms:.1} ms at most",
        moved.processes.len(),
        moved.threads
    ))
}
