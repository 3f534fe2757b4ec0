//! Stopping and removing one node.

use std::time::Duration;

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node as node;
use insula_servers::KeptServers;

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
    let removed = stopped.and_then(|stopped| match remove(driver, name) {
        Err(error) if error.kind != Kind::NoNode => Err(error),
        _ => Ok(stopped),
    });
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

/// Removes a node that has stopped, and forgets its servers.
fn remove(driver: &Driver, name: &Name) -> Result<(), Error> {
    let root = Root::default();
    // A record that cannot be read keeps no node from being removed.
    let servers = KeptServers::of(&root, node::find(driver, name)?.info.id);
    node::remove(driver, name, false)?;
    servers?.forget(&root)
}
