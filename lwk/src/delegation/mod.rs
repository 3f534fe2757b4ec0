//! This kernel's side of delegation; `abi/include/insula_lwk.h` defines the protocol.

mod area;
mod slot;

pub use area::{DelegationArea, ProcessPages};
pub use slot::{Reply, Slot};
