//! This kernel's half of delegation: `abi/include/insula_lwk.h` tells the protocol.

mod area;
mod desk;

pub use area::{Area, ProcessPages};
pub use desk::{Answer, Desk};
