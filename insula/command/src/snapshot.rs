//! `insula snapshot`, and copies that `insula run` starts.

use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_exec::agent;
use insula_node::monitor_state::MonitorState;
use insula_node::{Handle, Started};

use super::{Context, Failure, node, ps};

/// Gives a copy an identity of its own. One that has the original's is killed: its random numbers, for
/// one, are those of all other copies.
pub(super) fn rename(driver: &Driver, started: &Started) -> Result<(), Failure> {
    let name: Name = started.name.parse()?;
    let renamed = agent::rename(driver, &name);
    if renamed.is_ok() {
        insula_node::store_written_set(driver, &name);
    }
    renamed.map_err(|error| {
        let state = insula_node::find(driver, &name).map(|handle| ending_text(&handle));
        // The first error is the one to tell.
        let _ = insula_node::remove(driver, &name, true);
        let error = match state {
            Ok(state) if !state.starts_with("running") => {
                Error::new(format!("the copy '{name}' has not gone on: {state}"))
            }
            _ => error,
        };
        error.leaving("it has been removed").into()
    })
}

/// A node's state, and what its monitor tells of its end.
fn ending_text(handle: &Handle) -> String {
    let state = ps::state_text(&handle.view());
    match MonitorState::read(handle) {
        Ok(Some(MonitorState {
            ended: Some(ended), ..
        })) => format!("{state}: {ended}"),
        _ => state,
    }
}

/// Takes a snapshot of a node.
pub(super) fn snapshot(context: &Context, name: &Name, image: &Name) -> Result<(), Failure> {
    let driver = context.driver()?;
    let handle = node::find(&driver, name)?;
    // Before its agent answers, which may take as long as it boots.
    insula_node::check_snapshot(&handle, name)?;
    if !handle.is_paused() {
        agent::check_agent(&driver, name)?;
    }
    insula_node::remove_unused_disks(&driver, &context.root);
    Ok(insula_node::snapshot(&driver, &context.root, name, image)?)
}
