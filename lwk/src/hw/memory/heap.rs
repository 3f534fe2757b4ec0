//! The kernel's heap. It grows by blocks of frames, which it never returns.

#![allow(unsafe_code, reason = "memory is handed to the allocator by address")]

use core::alloc::Layout;

use insula_bare::memory::FRAME_SIZE;
use talc::{OomHandler, Span, Talc, Talck};

use crate::hw::memory::frames::alloc_block;

/// Minimum growth: 1 MiB.
const ORDER_MIN: u8 = 8;
/// Bytes that the allocator uses of a block.
const OVERHEAD: usize = 1024;

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: Talck<spin::Mutex<()>, Grow> = Talc::new(Grow).lock();

/// Size of the initial heap, used before the memory map is read.
const EARLY_SIZE: usize = 512 << 10;
static mut EARLY: [u8; EARLY_SIZE] = [0; EARLY_SIZE];

/// Initializes the heap. Called once, before any allocation.
pub(crate) fn init() {
    // SAFETY: nothing else uses the static, and it is claimed once.
    let claimed = unsafe {
        let early = Span::from_base_size((&raw mut EARLY).cast(), EARLY_SIZE);
        HEAP.lock().claim(early)
    };
    assert!(claimed.is_ok(), "initializing the heap");
}

struct Grow;

impl OomHandler for Grow {
    fn handle_oom(talc: &mut Talc<Self>, layout: Layout) -> Result<(), ()> {
        let needed = layout.size() + layout.align() + OVERHEAD;
        let frames = needed.div_ceil(FRAME_SIZE as usize).next_power_of_two();
        let least = frames.ilog2() as u8;
        // If memory is scarce, by no more than needed.
        let orders = (least..=least.max(ORDER_MIN)).rev();
        let mut blocks = orders.filter_map(|order| Some((order, alloc_block(order)?)));
        let (order, block) = blocks.next().ok_or(())?;
        let size = (FRAME_SIZE as usize) << order;
        // SAFETY: the block has just been allocated, is in the direct map, and is never freed.
        unsafe { talc.claim(Span::from_base_size(block.in_direct_map(), size)) }.map(drop)
    }
}
