//! Nodes as containers: their agent, and their virtio devices.

pub(super) mod agent;
pub(super) mod disks;
pub(super) mod living;
mod privileges;
pub(super) mod virtio;
