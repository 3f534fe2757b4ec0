//! Containers: trees of processes in namespaces of their own.
//!
//! | module | concept |
//! |---|---|
//! | `table` | the node's containers, and requests about them |
//! | `one`, `start` | one of them, its first process and its state |
//! | `namespaces` | namespaces for one, with its network card |
//! | `cards` | the node's network card, with which theirs go and come |
//! | `inside` | its first process, until it executes the program |
//! | `pod` | containers that share the node, as those of a pod |
//! | `view` | what those see of their kernel |
//! | `join` | programs that are run in it besides |
//! | `cgroup` | its control group: all its processes |
//! | `output` | its log |
//! | `criu` | running CRIU |
//! | `obstacles`, `locks` | what keeps one from being moved |
//! | `memory` | how much of its memory is copied when it is moved |
//! | `source`, `target` | the two ends of a move |
//! | `pre_copy` | a source whose memory is copied while the container runs |
//! | `timers` | timers that CRIU would stop |
//! | `repair` | connections that a killed CRIU has not given back |
//! | `kept`, `recover` | what outlives the server, and how the next one takes containers over |
//! | `tree` | processes that plain CRIU has dumped, in a container |
//!
//! They are children of the server and end with the node; if the server is killed, they go on, and the next
//! server takes them over.

mod cards;
mod cgroup;
mod criu;
mod inside;
mod join;
mod kept;
mod locks;
mod memory;
mod namespaces;
mod obstacles;
mod one;
mod output;
mod pod;
mod pre_copy;
mod recover;
mod repair;
mod source;
mod start;
mod table;
mod target;
mod timers;
mod tree;
mod view;

pub(crate) use cgroup::{JOIN, join, remove_parent};
pub(crate) use inside::{INSIDE, enter};
pub(crate) use kept::{HOLD, hold_input, keep_status};
pub(crate) use one::exit_status;
pub(crate) use pod::{POD, enter as enter_pod};
pub(crate) use table::Containers;
pub(crate) use tree::{FIRST, TREE, enter as enter_tree, run_first};

/// Folder of what the agent keeps of containers, in memory: a folder for each.
const FOLDER: &str = "/run/insula/containers";
