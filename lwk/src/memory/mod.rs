//! The kernel's memory: frames, its heap, its own page table.

pub mod buddy;
mod frames;
mod heap;
mod kernel_table;

pub(crate) use frames::add;
pub use frames::{Pool, free_bytes, give_block, take_block, take_for_program, total_bytes};
pub(crate) use heap::begin as begin_heap;
pub(crate) use kernel_table::{build, image_size};
