//! Nodes as containers: their agent, and their virtio devices.

pub(super) mod agent;
pub(super) mod attach;
pub(super) mod checkpoint;
pub(super) mod clock;
pub(super) mod conformance;
pub(super) mod disks;
pub(super) mod living;
pub(super) mod move_base;
pub(super) mod move_kills;
pub(super) mod move_linux;
pub(super) mod move_memory;
pub(super) mod networks;
pub(super) mod oci;
mod privileges;
pub(super) mod services;
pub(super) mod upgrade;
pub(super) mod virtio;
