//! Programs in Linux nodes: what the command says to the agent that runs there as the first process
//! (`insula_agent`), through a socket between base and node.
//!
//! What a node says is not trusted: frames are bounded, and only bytes and an ending come of them.

mod connect;
mod exec;
mod terminal;

pub use connect::ConnectError;
pub use exec::{AgentExec, AgentExecError, exec};
