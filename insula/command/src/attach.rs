//! `insula attach`.

use std::io;
use std::process::ExitCode;

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::agent::{self, AgentAttach, AttachEnd};
use insula_exec::container as containers;
use insula_node::{self as node, NodeRecord, no_record};

use super::cli::Attach;
use super::exec::{FAILED, console, fail};
use super::{Context, Failure, container, output, wait};

/// Attaches to a node's program, or to its console if it has none; exits with the program's status.
pub(super) fn attach(context: &Context, options: &Attach) -> Result<ExitCode, Failure> {
    let driver = context.driver()?;
    if let Some(record) = container::find(context, &options.name)? {
        let status = containers::log(&driver, &record, true, io::stdout().lock())?;
        return Ok(ExitCode::from(status.status()));
    }
    let record = match record(&driver, &options.name) {
        Ok(record) => record,
        Err(error) => return Ok(fail(&error, FAILED)),
    };
    if record.spec.program.is_none() {
        return console(context, &options.name, options.detach_keys.clone());
    }
    let request = AgentAttach {
        node: &options.name,
        interactive: record.spec.interactive && !options.no_stdin,
        terminal: record.spec.tty,
        detach_keys: options.detach_keys.clone(),
        forwards_signals: options.sig_proxy,
    };
    Ok(match agent::attach(&driver, &request) {
        Ok(AttachEnd::Ended(status)) => ExitCode::from(status.status()),
        Ok(AttachEnd::NodeEnded(reason)) => ExitCode::from(wait::status_of(reason)),
        Ok(AttachEnd::Detached) => ExitCode::SUCCESS,
        Err(failure) if output::is_closed_pipe(&failure) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure, FAILED),
    })
}

/// The record of a Linux node.
fn record(driver: &Driver, name: &Name) -> Result<NodeRecord, Error> {
    let record = node::find(driver, name)?.record;
    let record = record.ok_or_else(|| no_record(name.as_str()).unchanged())?;
    match record.is_linux() {
        true => Ok(record),
        false => Err(has_no_program(name)),
    }
}

/// The error of a node of the lightweight kernel.
fn has_no_program(name: &Name) -> Error {
    Error::new(format!(
        "'{name}' runs the lightweight kernel, which starts without a program"
    ))
    .unchanged()
    .hint(format!("`insula exec {name} -- PROGRAM` runs one there"))
}
