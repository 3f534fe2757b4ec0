//! The lightweight kernel, its programs, and the delegation of their system calls.

pub(super) mod base_mappings;
pub(super) mod builds;
pub(super) mod databases;
pub(super) mod delegation;
pub(super) mod drivers;
pub(super) mod lwk;
pub(super) mod moving;
pub(super) mod network_server;
pub(super) mod other_tasks;
pub(super) mod parallel;
pub(super) mod programs;
pub(super) mod servers;
pub(super) mod shared_core;
