//! The frame allocator: one buddy allocator for each range of memory.

#![allow(
    unsafe_code,
    reason = "the state of frames is kept in memory that no type owns"
)]

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use insula_bare::memory::{FRAME_SIZE, PhysAddr};

use crate::hw::boot_info::memory_map::MemoryRange;
use crate::hw::memory::buddy::{Buddy, Frame};

/// Reserve for the kernel that programs cannot use: this fraction of the memory, but at least this
/// many bytes.
const RESERVE_PART: u64 = 64;
const RESERVE_MIN: u64 = 2 << 20;

static ZONES: spin::Mutex<Zones> = spin::Mutex::new(Zones {
    first: None,
    more: Vec::new(),
});
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// Free bytes. Changed only with the zones locked.
static FREE: AtomicU64 = AtomicU64::new(0);

/// The first zone exists before the heap.
struct Zones {
    first: Option<Buddy<'static>>,
    more: Vec<Buddy<'static>>,
}

impl Zones {
    fn all(&mut self) -> impl Iterator<Item = &mut Buddy<'static>> {
        self.first.iter_mut().chain(&mut self.more)
    }
}

/// Adds a memory range, except for `excluded`. The state of its frames is stored at its beginning,
/// or behind `excluded` if that is there.
///
/// # Safety
/// It is memory of this kernel, in the direct map, and nobody uses it except for `excluded`.
pub(crate) unsafe fn add_range(range: MemoryRange, excluded: MemoryRange) {
    let first = range.start.div_ceil(FRAME_SIZE);
    let end = range.end() / FRAME_SIZE;
    let count = end.saturating_sub(first);
    let table_frames = (count * size_of::<Frame>() as u64).div_ceil(FRAME_SIZE);
    let (excluded_start, excluded_end) = excluded_frames(&excluded, first, end);
    // Next to the excluded part: before it if there is room.
    let table = match excluded_start - first >= table_frames {
        true => first,
        false => excluded_end,
    };
    if count == 0 || table + table_frames >= end {
        return;
    }
    let place = PhysAddr(table * FRAME_SIZE).in_direct_map().cast::<Frame>();
    let frames = unsafe {
        // SAFETY: 1. by the caller, the frames from `table` on are free; they are not given to the
        // buddy allocator below, so nothing else refers to the slice. 2. It is written before it is
        // made.
        for index in 0..count as usize {
            place.add(index).write(Frame::ALLOCATED);
        }
        core::slice::from_raw_parts_mut(place, count as usize)
    };
    let mut buddy = Buddy::new(frames, first);
    let table_range = (table, table + table_frames);
    let mut excluded_ranges = [table_range, (excluded_start, excluded_end)];
    excluded_ranges.sort_unstable();
    let mut next = first;
    for (from, to) in excluded_ranges {
        buddy.free_range(next, from.max(next));
        next = next.max(to);
    }
    buddy.free_range(next, end);
    let bytes = buddy.free_frames() * FRAME_SIZE;
    TOTAL.fetch_add(bytes, Ordering::Relaxed);
    FREE.fetch_add(bytes, Ordering::Relaxed);
    add_zone(buddy);
}

/// Returns the excluded frames within a range; an empty range at its end if there are none.
fn excluded_frames(excluded: &MemoryRange, first: u64, end: u64) -> (u64, u64) {
    let from = (excluded.start / FRAME_SIZE).clamp(first, end);
    let to = excluded.end().div_ceil(FRAME_SIZE).clamp(first, end);
    if from == to { (end, end) } else { (from, to) }
}

fn add_zone(buddy: Buddy<'static>) {
    let mut zones = ZONES.lock();
    if zones.first.is_none() {
        zones.first = Some(buddy);
        return;
    }
    // Memory for the list may come from the zones themselves: they are unlocked meanwhile.
    drop(zones);
    let mut more = Vec::with_capacity(ZONES.lock().more.len() + 1);
    let mut zones = ZONES.lock();
    more.append(&mut zones.more);
    more.push(buddy);
    let old = core::mem::replace(&mut zones.more, more);
    drop(zones);
    drop(old);
}

/// Allocates a block of 2^order frames, not zeroed.
#[must_use]
pub fn alloc_block(order: u8) -> Option<PhysAddr> {
    let mut zones = ZONES.lock();
    let number = zones.all().find_map(|zone| zone.alloc(order))?;
    FREE.fetch_sub(FRAME_SIZE << order, Ordering::Relaxed);
    Some(PhysAddr(number * FRAME_SIZE))
}

/// Allocates a block for a program. The reserve stays for the kernel, which so keeps running when
/// programs have used up all other memory.
#[must_use]
pub fn alloc_for_program(order: u8) -> Option<PhysAddr> {
    if !leaves_free(FRAME_SIZE << order, reserve()) {
        return None;
    }
    alloc_block(order)
}

/// Returns the size of the kernel's reserve, in bytes.
pub(super) fn reserve() -> u64 {
    (total_bytes() / RESERVE_PART).max(RESERVE_MIN)
}

/// Whether `rest` bytes stay free after an allocation.
pub(super) fn leaves_free(bytes: u64, rest: u64) -> bool {
    free_bytes().checked_sub(bytes) >= Some(rest)
}

/// Frees a block from [`alloc_block`], or gives it up if it has other owners, see [`share_block`].
///
/// # Panics
/// If it was not allocated there.
pub fn free_block(block: PhysAddr, order: u8) {
    with_zone(block, |zone, number| {
        let freed = zone.give_up(number, order);
        FREE.fetch_add(freed * FRAME_SIZE, Ordering::Relaxed);
    });
}

/// Adds an owner to a block from [`alloc_block`]. Each of its frames is free when all owners have
/// freed it.
///
/// # Panics
/// If it was not allocated there.
pub fn share_block(block: PhysAddr, order: u8) {
    with_zone(block, |zone, number| zone.share(number, order));
}

/// Whether any frame of a block from [`alloc_block`] has several owners. An owner that finds none
/// stays the only one until it shares the block itself.
///
/// # Panics
/// If it was not allocated there.
#[must_use]
pub fn is_shared(block: PhysAddr, order: u8) -> bool {
    with_zone(block, |zone, number| zone.is_shared(number, order))
}

/// Calls a function with the zone and the number of a block.
fn with_zone<T>(block: PhysAddr, operation: impl FnOnce(&mut Buddy<'static>, u64) -> T) -> T {
    let number = block.0 / FRAME_SIZE;
    let mut zones = ZONES.lock();
    let zone = zones.all().find(|zone| zone.holds(number));
    operation(zone.expect("a block from this allocator"), number)
}

/// Returns the number of free bytes.
#[must_use]
pub fn free_bytes() -> u64 {
    FREE.load(Ordering::Relaxed)
}

/// Returns the number of bytes that were free at the start.
#[must_use]
pub fn total_bytes() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}
