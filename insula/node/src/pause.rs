//! Pausing and resuming confined nodes: their monitor executes their kernel no more for a while.

use insula_base::error::Error;
use insula_base::root::Root;
use insula_driver::name::Name;
use insula_driver::{CallError, Driver};
use nix::errno::Errno;

use super::end::not_running;
use super::events::{NodeEvent, Status};
use super::view::{Handle, find};

/// Pauses a node: its cores, memory and devices stay its own, and it executes nothing.
///
/// # Errors
/// Why it was not.
pub fn pause(driver: &Driver, name: &Name) -> Result<(), Error> {
    let handle = find(driver, name)?;
    check_running(&handle, name)?;
    if handle.is_paused() {
        return Err(is_paused(name));
    }
    handle
        .node
        .pause()
        .map_err(|error| failed(name, "paused", error))?;
    record(name, Status::Pause);
    Ok(())
}

/// Has a paused node go on.
///
/// # Errors
/// As of [`pause`].
pub fn resume(driver: &Driver, name: &Name) -> Result<(), Error> {
    let handle = find(driver, name)?;
    check_running(&handle, name)?;
    if !handle.is_paused() {
        let what = format!("the node '{name}' is not paused");
        return Err(Error::new(what).unchanged());
    }
    handle
        .node
        .resume()
        .map_err(|error| failed(name, "resumed", error))?;
    record(name, Status::Unpause);
    Ok(())
}

fn record(name: &Name, status: Status) {
    // Best effort: it is done.
    let _ = NodeEvent::now(name.as_str(), status).record(&Root::default());
}

/// The error of an operation for which a node would have to execute.
#[must_use]
pub fn is_paused(name: impl std::fmt::Display) -> Error {
    Error::new(format!("the node '{name}' is paused"))
        .unchanged()
        .hint(format!("`insula resume {name}` has it go on"))
}

fn check_running(handle: &Handle, name: &Name) -> Result<(), Error> {
    match handle.is_running() {
        true => Ok(()),
        false => Err(not_running(name)),
    }
}

/// The module has refused; `action` is a participle.
fn failed(name: &Name, action: &str, error: CallError) -> Error {
    match error.errno {
        Errno::EALREADY => not_running(name),
        Errno::EOPNOTSUPP => Error::new(format!(
            "the node '{name}' cannot be {action}: only nodes with --isolation vmm can"
        ))
        .unchanged()
        .hint("the cores of other nodes execute their kernel directly: nothing could hold them"),
        Errno::EBUSY => Error::new(format!(
            "the node '{name}' cannot be {action}: it has memory of the base, which the base may need back"
        ))
        .unchanged()
        .hint("nodes of the lightweight kernel, and nodes with grants, cannot be paused"),
        _ => Error::new(format!("the node '{name}' could not be {action}"))
            .because(error)
            .unchanged(),
    }
}
