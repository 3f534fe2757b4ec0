//! Nodes that are confined by a monitor.

pub(super) mod confined;
pub(super) mod confined_update;
