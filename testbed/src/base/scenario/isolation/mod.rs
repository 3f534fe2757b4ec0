//! Nodes that are confined by a monitor.

pub(super) mod attacked;
mod attacker;
pub(super) mod cloned_disks;
pub(super) mod clones;
pub(super) mod confined;
pub(super) mod confined_devices;
pub(super) mod confined_grants;
pub(super) mod confined_lwk;
pub(super) mod confined_paused;
pub(super) mod confined_programs;
pub(super) mod confined_update;
pub(super) mod confined_vmx;
pub(super) mod hostile;
pub(super) mod kvm_beside;
pub(super) mod loaded_snapshot;
mod neighbour;
pub(super) mod shared_confined_core;

/// Arguments of a node that is confined.
const CONFINED: [&str; 2] = ["--isolation", "vmm"];
