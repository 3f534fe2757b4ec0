//! The kernel's memory: frames, heap, page table.

pub mod buddy;
mod frames;
mod heap;
mod kernel_table;

pub(crate) use frames::add_range;
pub use frames::{
    KernelFrames, ProgramTableFrames, alloc_block, alloc_for_program, free_block, free_bytes,
    has_room, has_room_to_free, reserve_in, reserve_to_free, total_bytes, zeroed,
};
pub(crate) use heap::init as init_heap;
pub(crate) use kernel_table::{build, image_size};
