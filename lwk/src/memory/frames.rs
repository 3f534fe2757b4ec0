//! The frame allocator: one buddy allocator for each range of memory.

#![allow(
    unsafe_code,
    reason = "the state of frames is kept in memory that no type owns"
)]

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use insula_bare::memory::{self, FRAME_SIZE, FrameAllocator, PhysAddr};

use super::buddy::{Buddy, Frame};
use crate::boot_info::MemoryRange;
use crate::process::errno::Errno;

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
fn reserve() -> u64 {
    (total_bytes() / RESERVE_PART).max(RESERVE_MIN)
}

/// Whether `rest` bytes stay free after an allocation.
fn leaves_free(bytes: u64, rest: u64) -> bool {
    free_bytes().checked_sub(bytes) >= Some(rest)
}

/// Checks that the kernel may allocate `bytes` on behalf of a program without using its reserve. To
/// be called wherever a program determines the size of an allocation.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn has_room(bytes: u64) -> Result<(), Errno> {
    room(bytes, reserve())
}

/// Like [`has_room`], for what is needed to free a program's memory: may use half of the reserve.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn has_room_to_free(bytes: u64) -> Result<(), Errno> {
    room(bytes, reserve() / 2)
}

fn room(bytes: u64, rest: u64) -> Result<(), Errno> {
    // On a host, and before memory is added, there is only the heap.
    let may = total_bytes() == 0 || leaves_free(bytes, rest);
    may.then_some(()).ok_or(Errno::ENOMEM)
}

/// Reserves room for `more` entries in a list, on behalf of a program.
///
/// # Errors
/// [`Errno::ENOMEM`]; the list is as it was.
pub fn reserve_in<T>(list: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    grow(list, more, has_room)
}

/// Like [`reserve_in`], for what is needed to free memory: see [`has_room_to_free`].
///
/// # Errors
/// [`Errno::ENOMEM`]; the list is as it was.
pub fn reserve_to_free<T>(list: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    grow(list, more, has_room_to_free)
}

fn grow<T>(
    list: &mut Vec<T>,
    more: usize,
    has_room: impl FnOnce(u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    // A list grows to twice its capacity, and is copied.
    let count = (2 * list.capacity()).max(list.len().saturating_add(more));
    has_room(count.saturating_mul(size_of::<T>()) as u64)?;
    list.try_reserve(more).map_err(|_| Errno::ENOMEM)
}

/// Allocates zeroed bytes on behalf of a program.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn zeroed(size: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    reserve_in(&mut bytes, size)?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// Frees a block from [`alloc_block`].
///
/// # Panics
/// If it was not allocated there.
pub fn free_block(block: PhysAddr, order: u8) {
    let number = block.0 / FRAME_SIZE;
    let mut zones = ZONES.lock();
    let zone = zones.all().find(|zone| zone.holds(number));
    zone.expect("a block from this allocator")
        .free(number, order);
    FREE.fetch_add(FRAME_SIZE << order, Ordering::Relaxed);
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

/// Frames for the kernel's own page table.
#[derive(Clone, Copy, Debug)]
pub struct KernelFrames;

/// Frames for programs' page tables. They may use half of the reserve: so a program can unmap a
/// part of a large page, for which a table is needed, when memory is used up.
#[derive(Clone, Copy, Debug)]
pub struct ProgramTableFrames;

impl FrameAllocator for ProgramTableFrames {
    fn alloc(&mut self) -> Option<PhysAddr> {
        has_room_to_free(FRAME_SIZE).ok()?;
        KernelFrames.alloc()
    }

    fn free(&mut self, frame: PhysAddr) {
        KernelFrames.free(frame);
    }
}

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
