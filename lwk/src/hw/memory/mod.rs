//! The kernel's memory: frames, heap, page table.

pub mod buddy;
pub mod frames;
pub(crate) mod heap;
pub(crate) mod kernel_table;
pub mod room;
pub mod table_frames;
