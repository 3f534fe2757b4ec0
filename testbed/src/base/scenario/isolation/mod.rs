//! Nodes that are confined by a monitor.

pub(super) mod attacked;
mod attacker;
pub(super) mod confined;
pub(super) mod confined_vmx;
pub(super) mod hostile;
pub(super) mod kvm_beside;
mod neighbour;
