//! `pause` and `resume`: the processes of a container stand still in their node, whose kernel goes on.

use std::process::ExitCode;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_exec::agent::Location;
use insula_exec::container::freeze_at;

use super::state::{Record, State};

/// Has a container's processes stand still.
///
/// # Errors
/// It is paused, does not run, or its processes do not come to a stand; they go on.
pub(super) fn pause(record: &Record) -> Result<ExitCode, Error> {
    check(record)?;
    let state = State::of(&record.id);
    // Before, so that no paused one seems to run.
    state
        .set_paused(true)
        .map_err(|error| not_kept(record, error))?;
    freeze(record, true).inspect_err(|_| drop(state.set_paused(false)))?;
    Ok(ExitCode::SUCCESS)
}

/// Has a container's processes go on.
///
/// # Errors
/// It is not paused, or its node's agent does not answer.
pub(super) fn resume(record: &Record) -> Result<ExitCode, Error> {
    let state = State::of(&record.id);
    if !state.is_paused() {
        return Err(Error::new(format!("the container '{}' is not paused", record.id)).unchanged());
    }
    freeze(record, false)?;
    state
        .set_paused(false)
        .map_err(|error| not_kept(record, error))?;
    Ok(ExitCode::SUCCESS)
}

/// Checks that a container is not paused: a process that joins it would stand still, too.
///
/// # Errors
/// It is.
pub(super) fn check(record: &Record) -> Result<(), Error> {
    if !State::of(&record.id).is_paused() {
        return Ok(());
    }
    let what = format!("the container '{}' is paused", record.id);
    let hint = format!("`insula-oci resume {}` has it go on", record.id);
    Err(Error::new(what).untouched().hint(hint))
}

fn freeze(record: &Record, frozen: bool) -> Result<(), Error> {
    let at = Location::Node(record.node.clone());
    freeze_at(&Driver::open()?, &at, &record.name, frozen)
}

fn not_kept(record: &Record, error: std::io::Error) -> Error {
    let what = format!(
        "it cannot be kept whether the container '{}' is paused",
        record.id
    );
    Error::new(what).because(error)
}
