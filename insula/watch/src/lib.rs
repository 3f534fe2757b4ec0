//! Watching a kernel from outside: what it cannot tell of itself.
//!
//! A kernel that hangs does not say so, and one that was changed to hide something says nothing of
//! it. A watcher reads the kernel's memory from another kernel, or from another core, and compares:
//! the code with the image that it was started from, one list of tasks with another, counters with
//! what they were a while ago. Nothing in the watched kernel takes part, and nothing of it is
//! trusted (source of the idea: OS colocation, University of Tsukuba, 2009).
//!
//! | | |
//! |---|---|
//! | [`Watched`] | a kernel that can be watched: the base's, or a node's |
//! | [`Target`] | it at one moment: its tables, and its image as reference |
//! | [`Rules`] | what is looked for, with thresholds and exceptions: of the crate `insula-rules` |
//! | [`Repair`] | bytes to be written back |
//! | [`BaseRecord`] | keeps what is known of the base where a warm reset leaves it |
//! | [`MachineReset`] | resets the machine |
//! | [`Watcher`] | looks again and again, and tells [`Finding`]s that begin and end |
//! | `check/` | one file for each kind of look |
//!
//! The memory changes while it is read. So a check that compares two places is made again at once,
//! and only what is found each time is a finding; one that cannot read what it needs is tried again,
//! and counts as a finding itself if that never succeeds ([`Kind::Unreadable`]).

mod check;
mod finding;
mod kcore;
mod keep;
mod lock;
mod module_files;
mod repair;
mod repair_node;
mod resident;
mod target;
mod task;
mod undo;
mod watched;
mod watcher;

pub use finding::Finding;
pub use insula_rules::{Action, Kind, Rules, RulesError};
pub use keep::{BaseRecord, MachineReset};
pub use module_files::ModuleFiles;
pub use repair::{Exchange, Repair, RepairError};
pub use repair_node::repair_node;
pub use resident::keep_resident;
pub use target::{Kernel, Target};
pub use undo::undo_repair;
pub use watched::{NoKernel, OwnFiles, Watched};
pub use watcher::{Event, Watcher};
