//! Nodes that are confined by a monitor.

pub(super) mod confined;
