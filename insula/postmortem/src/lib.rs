//! Inspecting a node: its memory as a dump, backtraces of its cores, and gdb's view of both.
//!
//! Everything is read from outside, from the node's memory, without help or preparation in the
//! node. Only the registers and the backtraces of a running node need an interrupt, which its
//! kernel handles by itself (see [`node::nmi`](insula_node::nmi)).
//! | | |
//! |---|---|
//! | [`dump()`] | writes an ELF core file of a node's memory, like kdump's |
//! | [`Store`] | the folder of stored dumps, and its limits |
//! | [`dump_on_crash`] | dump by a node's supervisor |
//! | [`backtrace()`] | makes a node's kernel print where each of its cores is |
//! | [`kept_logs`] | logs of the base's earlier kernels |
//! | [`debug`] | gdb's remote protocol over a node's memory |

mod backtrace;
pub mod debug;
mod dump;
mod inspected_node;
mod notes;
mod pstore;
mod store;
mod vmcore;

pub use backtrace::{Backtrace, backtrace};
pub use dump::{DumpRequest, DumpWarning, Dumped, Target, dump, dump_on_crash};
pub use inspected_node::InspectedNode;
pub use pstore::{KeptLog, kept_logs};
pub use store::{Limits, Store, StoredDump};
