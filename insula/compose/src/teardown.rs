//! Stopping and removing one node.

use std::time::Duration;

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node as node;
use insula_servers::remove_node;

use super::report::{Event, Observer};

/// Stops and removes a node; one that was removed meanwhile is no failure.
pub(super) fn teardown(
    driver: &Driver,
    name: &Name,
    timeout: Duration,
    observer: Observer,
) -> Result<(), Error> {
    let stopped = match node::stop(driver, name, timeout) {
        Ok(stopped) => Ok(Some(stopped)),
        Err(error) if [Kind::NotRunning, Kind::NoNode].contains(&error.kind) => Ok(None),
        Err(error) => Err(error),
    };
    let removed =
        stopped.and_then(
            |stopped| match remove_node(driver, &Root::default(), name, false) {
                Err(error) if error.kind != Kind::NoNode => Err(error),
                _ => Ok(stopped),
            },
        );
    match removed {
        Ok(stopped) => {
            observer(&Event::NodeRemoved(name, stopped));
            Ok(())
        }
        Err(error) => {
            observer(&Event::NodeFailed(&error));
            Err(error)
        }
    }
}
