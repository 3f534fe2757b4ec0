//! When the agent of the base is needed no longer.

use std::path::Path;

use insula_agent::base::FOLDER;
use insula_base::root::Root;

use super::record::{self, Records};
use crate::agent::{self, Location};

/// Ends it if no container is on the base, and none is coming: moves are locked by the caller, or by nobody.
/// Best effort: otherwise the next container there uses it.
pub(super) fn end_if_unused(root: &Root) {
    let Ok(records) = Records::lock(root) else {
        return;
    };
    let is_used = |all: Vec<record::ContainerRecord>| {
        all.iter()
            .any(|one| one.node == Location::Base || one.moving_to == Some(Location::Base))
    };
    if record::all(root).map_or(true, is_used) || !Path::new(FOLDER).exists() {
        return;
    }
    let _ = agent::end_base_agent();
    drop(records);
}

/// The same, unless one is being moved, which may be coming.
pub(super) fn end_if_nobody_comes(root: &Root) {
    if let Ok(Some(_lock)) = record::try_lock_moves(root) {
        end_if_unused(root);
    }
}
