//! Failures: of nodes, of their supervisors and of the command, and tools to find their causes.

pub(super) mod kills;
pub(super) mod post_mortem;
pub(super) mod supervision;
