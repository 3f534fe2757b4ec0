//! Containers of an OCI runtime in a node, while they run.

use std::time::Duration;

use insula_agent::container::ContainerRequest;
use insula_agent::pod::Share;
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;

use super::ask::{TIMEOUT, ask};
use crate::agent::Location;

/// Time that an agent has to send a signal.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends a signal to the first process of a container there.
///
/// # Errors
/// When it does not run there, or the agent does not answer soon: its node may hang.
pub fn signal_at(driver: &Driver, at: &Location, name: &Name, signal: i32) -> Result<(), Error> {
    let request = ContainerRequest::Signal {
        name: name.to_string(),
        signal,
    };
    let stream = at.connect_at_once(driver)?;
    ask(at, &stream, SIGNAL_TIMEOUT, request).map(drop)
}

/// Has all processes of a container there stand still, or go on.
///
/// # Errors
/// When it does not run there, or its processes do not come to a stand: then they go on.
pub fn freeze_at(driver: &Driver, at: &Location, name: &Name, frozen: bool) -> Result<(), Error> {
    let request = ContainerRequest::Freeze {
        name: name.to_string(),
        frozen,
    };
    ask_at_once(driver, at, request)
}

/// Changes how much of its node a container there gets. What is not said stays as it is.
///
/// # Errors
/// When it does not run there, or the node's kernel does not take a limit; others may be changed.
pub fn limit_at(driver: &Driver, at: &Location, name: &Name, share: Share) -> Result<(), Error> {
    let request = ContainerRequest::Limit {
        name: name.to_string(),
        share,
    };
    ask_at_once(driver, at, request)
}

fn ask_at_once(driver: &Driver, at: &Location, request: ContainerRequest) -> Result<(), Error> {
    let stream = at.connect_at_once(driver)?;
    ask(at, &stream, TIMEOUT, request).map(drop)
}
