//! Ending one node of many.

use std::time::Duration;

use super::deed::{Event, NodeError, Tell};
use crate::driver::Driver;
use crate::name::Name;
use crate::node::{self, EndError, FindError};

/// Stops and removes a node; one that somebody else has removed meanwhile is none to fail for.
pub(super) fn take_down(
    driver: &Driver,
    name: &Name,
    patience: Duration,
    tell: Tell,
) -> Result<(), NodeError> {
    let stopped = match node::stop(driver, name, patience) {
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
            tell(&Event::NodeRemoved(name, stopped));
            Ok(())
        }
        Err(error) => {
            let error = NodeError::from(error);
            tell(&Event::NodeFailed(&error));
            Err(error)
        }
    }
}
