//! Cores and memory: of the pool, of a NUMA node, and moved between base and nodes.

pub(super) mod cores;
pub(super) mod numa;
pub(super) mod pool;
pub(super) mod update;
