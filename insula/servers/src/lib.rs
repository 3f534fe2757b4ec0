//! Servers of the operating system on nodes of the lightweight kernel (AnT's, paper 5): which there are, on
//! which cores they run, and that they run.
//!
//! A server is an ordinary program on the node, known by the name of its endpoint. The node's kernel knows
//! endpoints and where their servers run; it is asked by a program on the node: this one, as `insula servers
//! here` ([`here`]), which the base starts there and reads (`on_node`).
//!
//! A server that is to be kept running has a record (`record`) in the command's private folder, and a
//! process of the base, its supervisor (`supervisor`), which starts the program on the node, on the cores of the
//! record, and again whenever it has ended or its node was restarted; until the record or the node is
//! removed. If a supervisor is killed its server dies with it, and the next `insula servers ls` starts another.

mod change;
mod described;
pub mod here;
mod kept;
mod on_node;
mod output;
mod placement;
mod placer;
mod record;
mod supervisor;

pub use change::{list, log, move_to, restart, start, stop};
pub use described::{ServerAction, ensure, remove_others};
pub use kept::remove_node;
pub use on_node::ServedEndpoint;
pub use record::{Place, ServerRecord, ServerSpec};
pub use supervisor::supervise;

use serde::Serialize;

/// A server as it is shown: what is known of its endpoint, and of its being kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct ServerView {
    /// Name of its node.
    pub node: String,
    /// Name of its endpoint.
    pub name: String,
    /// `running`; `starting` if it is kept running and has no endpoint yet; `waiting` if only clients wait for
    /// it; `stopped` if its node does not run.
    pub state: &'static str,
    /// The endpoint, if there is one.
    pub endpoint: Option<ServedEndpoint>,
    /// What is to be kept running, if it is.
    pub kept: Option<ServerSpec>,
}
