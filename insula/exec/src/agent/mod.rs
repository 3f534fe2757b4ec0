//! Running programs and copying files in Linux nodes, by the agent that is their first process
//! (`insula_agent`), over a socket between base and node.
//!
//! Messages of a node are not trusted: frames are bounded, and can only cause output, an exit
//! status, and files where the user wants them.

mod attach;
mod base;
mod clock;
mod connect;
mod copy;
mod detach;
mod exec;
mod input;
mod location;
mod place;
mod rename;
mod session;
mod terminal;
mod usage;

pub use attach::{AgentAttach, AttachEnd, attach};
pub(crate) use base::end as end_base_agent;
pub use clock::set_clock;
pub(crate) use connect::to_agent;
pub use copy::{AgentPlace, CopyEnd, copy};
pub use detach::{DETACH_KEYS, DetachKeys, DetachKeysError};
pub use exec::{AgentExec, Begins, exec, start};
pub use location::Location;
pub(crate) use location::in_root;
pub use place::{Place, PlaceError};
pub use rename::{check_agent, rename};
pub use usage::add_usage;
