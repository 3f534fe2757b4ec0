//! Containers: trees of processes in namespaces of their own.
//!
//! | module | concept |
//! |---|---|
//! | `table` | the node's containers, and their states |
//! | `namespaces` | namespaces for one, with its network card |
//! | `cards` | the node's network card, with which theirs go and come |
//! | `inside` | its first process, until it executes the program |
//! | `cgroup` | its control group: all its processes |
//! | `output` | its log |
//! | `criu` | running CRIU |
//! | `obstacles` | what keeps one from being moved |
//! | `source`, `target` | the two ends of a move |
//! | `timers` | timers that CRIU would stop |
//! | `tree` | processes that plain CRIU has dumped, in a container |
//!
//! They are children of the server and end with the node; if the server exits, they go on, but
//! cannot be named any more.

mod cards;
mod cgroup;
mod criu;
mod inside;
mod namespaces;
mod obstacles;
mod output;
mod source;
mod table;
mod target;
mod timers;
mod tree;

pub(crate) use cgroup::{JOIN, join};
pub(crate) use inside::{INSIDE, enter};
pub(crate) use table::Containers;
pub(crate) use tree::{FIRST, TREE, enter as enter_tree, run_first};

/// Folder of what the agent keeps of containers, in memory: a folder for each.
const FOLDER: &str = "/run/insula/containers";
