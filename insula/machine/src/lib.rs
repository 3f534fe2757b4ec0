//! The machine: whether it can host nodes, what it has and who has it, the pool.

mod check;
mod info;
mod pool;

pub use check::{Finding, Verdict, check};
pub use info::{CoreView, MachineView, MemoryView, NumaView, info};
pub use pool::{release, reserve};
