//! Stopping and removing one node.

use std::time::Duration;

use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::{self as node, EndError, FindError};

use super::report::{Event, NodeError, Observer};

/// Stops and removes a node; one that was removed meanwhile is no failure.
pub(super) fn teardown(
    driver: &Driver,
    name: &Name,
    timeout: Duration,
    observer: Observer,
) -> Result<(), NodeError> {
    let stopped = match node::stop(driver, name, timeout) {
        Ok(stopped) => Ok(Some(stopped)),
        Err(EndError::NotRunning(_) | EndError::Find(FindError::Unknown(_))) => Ok(None),
        Err(error) => Err(error),
    };
    let removed = stopped.and_then(|stopped| match node::remove(driver, name, false) {
        Ok(()) | Err(EndError::Find(FindError::Unknown(_))) => Ok(stopped),
        Err(error) => Err(error),
    });
    match removed {
        Ok(stopped) => {
            observer(&Event::NodeRemoved(name, stopped));
            Ok(())
        }
        Err(error) => {
            let error = NodeError::from(error);
            observer(&Event::NodeFailed(&error));
            Err(error)
        }
    }
}
