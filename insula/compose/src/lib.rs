//! Many nodes, described in a file: `insula up`, `insula down`.
//!
//! ```text
//! file's text --file, reader--> Project -------+
//!                                               +--plan--> Plan --up--> running nodes
//! module, sysfs ---------------> CurrentState --+
//! ```
//!
//! Errors are found before anything is changed: those of one file alone by [`Project::read`], then
//! those between files and with the machine's state by [`Plan::new`]. An error is shown with its
//! line.
//!
//! A node's record names the project that describes it and the digest of that description
//! ([`Described`](insula_node::Described)): a node with an equal description is left as it is, and
//! what others have created is never changed.

mod current_state;
mod diagnostic;
mod down;
mod file;
mod images;
mod lock;
mod networks;
mod nodes;
mod order;
mod plan;
mod project;
mod reader;
mod ready;
mod report;
mod schedule;
mod sources;
mod spans;
mod teardown;
#[cfg(test)]
mod tests;
mod up;

pub use current_state::{CurrentNode, CurrentState, RunState};
pub use diagnostic::{Diagnostic, Source, Span};
pub use down::{Scope, down};
pub use images::{ImageAction, ImageStep};
pub use lock::{Locked, lock};
pub use networks::{NetworkAction, NetworkStep};
pub use nodes::{NodeAction, NodeStep};
pub use order::Dependencies;
pub use plan::{Plan, PlanError};
pub use project::{
    FILE, Project, WantedImage, WantedKernel, WantedNetwork, WantedNode, WantedServer,
};
pub use report::{
    Action, Event, ImageReport, NetworkReport, NodeReport, Observer, Report, ServerReport,
};
pub use sources::sources;
pub use spans::Spans;
pub use up::up;
