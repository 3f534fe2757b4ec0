//! Frames of page tables.

#![allow(unsafe_code, reason = "a frame is cleared by its address")]

use insula_bare::memory::{self, FRAME_SIZE, FrameAllocator, PhysAddr};

use crate::hw::memory::frames::{alloc_block, free_block};
use crate::hw::memory::room::has_room_to_free;

/// Frames for the kernel's own page table.
#[derive(Clone, Copy, Debug)]
pub struct KernelFrames;

/// Frames for programs' page tables. They may use half of the reserve: so a program can unmap a
/// part of a large page, for which a table is needed, when memory is used up.
#[derive(Clone, Copy, Debug)]
pub struct ProgramTableFrames;

impl FrameAllocator for KernelFrames {
    fn alloc(&mut self) -> Option<PhysAddr> {
        let frame = alloc_block(0)?;
        // SAFETY: it has just been allocated, so nobody else uses it.
        unsafe { memory::clear(frame, FRAME_SIZE) };
        Some(frame)
    }

    fn free(&mut self, frame: PhysAddr) {
        free_block(frame, 0);
    }
}

impl FrameAllocator for ProgramTableFrames {
    fn alloc(&mut self) -> Option<PhysAddr> {
        has_room_to_free(FRAME_SIZE).ok()?;
        KernelFrames.alloc()
    }

    fn free(&mut self, frame: PhysAddr) {
        KernelFrames.free(frame);
    }
}
