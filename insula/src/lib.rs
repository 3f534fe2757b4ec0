//! Library behind the `insula` command: nodes, images and the machine, over `insula.ko`.
//!
//! | module | concept |
//! |---|---|
//! | [`driver`] | the module's descriptors; the only place with ioctls, mappings and `unsafe` |
//! | [`image`] | resident images: kernels kept in memory, ready to start |
//! | [`agent`] | programs in Linux nodes, run by the agent there |
//! | [`channel`] | sending to and receiving from another kernel |
//! | [`node`] | nodes: start, watch, read the log of, stop, remove |
//! | [`program`] | programs of the base on nodes of the lightweight kernel |
//! | [`stats`] | what nodes have counted |
//! | [`policy`] | what becomes of a node that has ended |
//! | [`supervisor`] | one process for each node, which sees to that |
//! | [`privilege`] | what supervisors and their programs may still do |
//! | [`postmortem`] | what is left of a node: dumps, backtraces, gdb |
//! | [`machine`] | the machine: can it host nodes, what has it, the pool |
//! | [`compose`] | many nodes, described in a file |
//! | [`device`] | PCI functions for nodes |
//! | [`storage`] | files and block devices of the base that nodes have as disks |
//! | [`state`] | what is written to files: locks, and files that are whole or not there |
//! | [`virtio`] | virtio devices for nodes |
//! | [`cores`], [`memory`] | what is asked for, and choosing it |
//! | [`topology`], [`root`] | what Linux tells of the machine, through files |
//! | [`units`], [`name`], [`digest`], [`report`] | how things are written |
//!
//! Everything outside [`driver`] is safe Rust and, given what the module answered, testable on any
//! host.

pub mod agent;
pub mod channel;
pub mod compose;
pub mod cores;
pub mod device;
pub mod digest;
pub mod driver;
pub mod image;
pub mod machine;
pub mod memory;
pub mod name;
pub mod node;
pub mod policy;
pub mod postmortem;
pub mod privilege;
pub mod program;
pub mod reach;
pub mod report;
pub mod root;
pub mod state;
pub mod stats;
pub mod storage;
pub mod supervisor;
pub mod topology;
pub mod units;
pub mod virtio;
