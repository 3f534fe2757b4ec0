//! Programs and files in Linux nodes: what the command says to the agent that runs there as the first process
//! (`insula_agent`), through a socket between base and node.
//!
//! What a node says is not trusted: frames are bounded, and only bytes, an ending, and files where the
//! user wants them come of them.

mod connect;
mod copy;
mod detach;
mod exec;
mod place;
mod terminal;

pub use connect::ConnectError;
pub use copy::{CopyError, copy};
pub use detach::{DETACH_KEYS, DetachKeys, NoKeys};
pub use exec::{AgentExec, AgentExecError, exec};
pub use place::{Place, PlaceError};
