//! Stopping and removing containers, and their logs.

use std::io::Write;
use std::time::Duration;

use insula_agent::container::ContainerRequest;
use insula_agent::frame::{self, Reader};
use insula_agent::{ExitStatus, Output, Request};
use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;

use super::ask::{self, ask};
use super::base_agent;
use super::ports;
use super::record::{ContainerRecord, Records};
use crate::agent::Location;

/// Stops a container: SIGTERM to its program, and SIGKILL after `grace_s` seconds.
///
/// # Errors
/// When its node's agent does not answer, or cannot stop it.
pub fn stop(driver: &Driver, record: &ContainerRecord, grace_s: u32) -> Result<(), Error> {
    if !record.node.is_running(driver)? {
        return Ok(());
    }
    let stream = record.node.connect_at_once(driver)?;
    let request = ContainerRequest::Stop {
        name: record.name.to_string(),
        grace_s,
    };
    let timeout = ask::TIMEOUT + Duration::from_secs(grace_s.into());
    ask(&record.node, &stream, timeout, request)
        .map(drop)
        .map_err(|error| error.context(format!("the container '{}' was not stopped", record.name)))
}

/// Sends a signal to the first process of a container.
///
/// # Errors
/// When it does not run, or its node's agent does not answer.
pub fn signal(driver: &Driver, record: &ContainerRecord, signal: i32) -> Result<(), Error> {
    let context = |error: Error| {
        let what = format!("the container '{}' got no signal", record.name);
        error.context(what)
    };
    let stream = record.node.connect_at_once(driver).map_err(context)?;
    let request = ContainerRequest::Signal {
        name: record.name.to_string(),
        signal,
    };
    ask(&record.node, &stream, ask::TIMEOUT, request)
        .map(drop)
        .map_err(context)
}

/// Removes a container that has ended, and its log; with `force` one that runs, too.
///
/// # Errors
/// When it runs, or its node's agent does not answer; it was left as it is.
pub fn remove(
    driver: &Driver,
    root: &Root,
    record: &ContainerRecord,
    force: bool,
) -> Result<(), Error> {
    let records = Records::lock(root)?;
    match remove_there(driver, record, force) {
        Err(error) if error.kind != Kind::NoNode => {
            let context = format!("the container '{}' was not removed", record.name);
            let hint = "stop it first, or use --force".to_owned();
            Err(error.context(context).unchanged().hint(hint))
        }
        _ => {
            records.remove(&record.name)?;
            drop(records);
            ports::closed(root, record);
            if record.node == Location::Base {
                base_agent::end_if_nobody_comes(root);
            }
            Ok(())
        }
    }
}

fn remove_there(driver: &Driver, record: &ContainerRecord, force: bool) -> Result<(), Error> {
    if force {
        stop(driver, record, 0)?;
    }
    if !record.node.is_running(driver)? {
        return Ok(());
    }
    let stream = record.node.connect_at_once(driver)?;
    let request = ContainerRequest::Remove(record.name.to_string());
    ask(&record.node, &stream, ask::TIMEOUT, request).map(drop)
}

/// Writes a container's log: what there is, or all up to its end; then returns its status.
///
/// # Errors
/// When its node's agent does not answer, or `to` cannot be written.
pub fn log(
    driver: &Driver,
    record: &ContainerRecord,
    follow: bool,
    mut to: impl Write,
) -> Result<ExitStatus, Error> {
    let node = &record.node;
    let stream = node.connect_at_once(driver)?;
    let request = ContainerRequest::Log {
        name: record.name.to_string(),
        follow,
    };
    let lost = |error| ask::unanswered(node).because(error);
    frame::write(&stream, &Request::Container(request)).map_err(|error| lost(error.into()))?;
    let mut reader = Reader::new(stream);
    loop {
        match reader.read().map_err(lost)? {
            Some(Output::Stdout(bytes)) => {
                to.write_all(bytes)
                    .and_then(|()| to.flush())
                    .map_err(|error| {
                        Error::of(Kind::Output, "the log cannot be written").because(error)
                    })?
            }
            Some(Output::Refused(reason)) => return Err(ask::refused(node, reason)),
            Some(Output::Ended(status)) => return Ok(status),
            Some(_) => {}
            None => return Err(ask::unanswered(node)),
        }
    }
}
