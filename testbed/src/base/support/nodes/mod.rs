//! Nodes that scenarios start, by the kernel or the program that they run.

pub(crate) mod clock;
pub(crate) mod content;
pub(crate) mod growing_log;
pub(crate) mod hang;
pub(crate) mod idle_node;
pub(crate) mod in_node;
pub(crate) mod peer_node;
pub(crate) mod test_node;
