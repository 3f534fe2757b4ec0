//! The kernel's memory: frames, its heap, its own page table.

pub mod buddy;
mod frames;
mod heap;
mod kernel_table;

pub(crate) use frames::add;
pub use frames::{
    Pool, ProgramTables, free_bytes, give_block, has_room, has_room_to_free, reserve_in,
    reserve_to_free, take_block, take_for_program, total_bytes, zeroed,
};
pub(crate) use heap::begin as begin_heap;
pub(crate) use kernel_table::{build, image_size};
