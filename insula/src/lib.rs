//! Library behind the `insula` command: nodes, images and the machine, over `insula.ko`.
//!
//! | module | concept |
//! |---|---|
//! | [`driver`] | typed descriptors of the module; the only place with ioctls, mappings and `unsafe` |
//! | [`image`] | resident images: kernels kept in memory, ready to start |
//! | [`agent`] | programs in Linux nodes, run by the agent there |
//! | [`channel`] | messages to and from another kernel |
//! | [`peer_pages`] | pages that the other side of a channel may refer to |
//! | [`node`] | nodes: start, watch, read the log, stop, remove |
//! | [`program`] | programs of the base on nodes of the lightweight kernel |
//! | [`stats`] | counters of nodes |
//! | [`policy`] | restart policies |
//! | [`supervisor`] | the process of each node that carries out its policy |
//! | [`privilege`] | privileges that supervisors and device servers keep |
//! | [`postmortem`] | dumps, backtraces, gdb |
//! | [`machine`] | the machine: check, resources, pool |
//! | [`compose`] | many nodes, described in a file |
//! | [`device`] | PCI functions for nodes |
//! | [`storage`] | files and block devices of the base that nodes have as disks |
//! | [`state`] | locks and atomic files |
//! | [`virtio`] | virtio devices for nodes |
//! | [`cores`], [`memory`] | requests for cores and memory, and choosing them |
//! | [`topology`], [`lockdown`], [`root`] | the machine as Linux shows it in files |
//! | [`units`], [`name`], [`digest`], [`report`] | parsing and formatting |
//!
//! Everything outside of [`driver`] is safe Rust and, given the module's answers, testable on any
//! host.

pub mod agent;
pub mod channel;
pub mod compose;
pub mod cores;
pub mod device;
pub mod digest;
pub mod driver;
pub mod image;
pub mod lockdown;
pub mod machine;
pub mod memory;
pub mod name;
pub mod node;
pub mod peer_pages;
pub mod policy;
pub mod postmortem;
pub mod privilege;
pub mod program;
pub mod report;
pub mod root;
pub mod state;
pub mod stats;
pub mod storage;
pub mod supervisor;
pub mod topology;
pub mod units;
pub mod virtio;
