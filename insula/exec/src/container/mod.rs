//! Containers in Linux nodes and on the base: trees of processes in namespaces of their own, by their names.
//!
//! A container's record says where it is, and what of the network belongs to it. What it does
//! there only the agent there knows, which is asked.

mod ask;
mod base_agent;
mod change;
mod check;
mod export;
mod import;
mod peer;
mod pod;
mod ports;
mod pre_copy;
mod processes;
mod record;
mod settle;
mod start;
mod state;
mod transfer;

pub(crate) use check::{check_container, check_node_alone, check_nodes};
pub(crate) use record::{Records, lock_moves};
pub(crate) use settle::{all, settle};
pub(crate) use start::check_node;
pub(crate) use state::ask_there;

pub use crate::agent::Location;
pub use change::{log, remove, signal, stop};
pub use export::{CheckpointRequest, Written, checkpoint};
pub use import::{RestoreRequest, restore};
pub use pod::{freeze_at, limit_at, signal_at};
pub use ports::serve_ports;
pub use processes::{move_processes, processes, processes_at};
pub use record::{ContainerRecord, names};
pub use settle::find;
pub use start::{StartRequest, start};
pub use state::{ContainerView, list, view};
pub use transfer::{ContainerMove, MovedContainer, PreCopy, check_move, move_to, no_container};
