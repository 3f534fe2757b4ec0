//! All frames that the kernel has, in one buddy system for each stretch of memory.

#![allow(
    unsafe_code,
    reason = "what is known of frames lies in memory that no type owns"
)]

use core::sync::atomic::{AtomicU64, Ordering};

use alloc::vec::Vec;
use insula_bare::memory::{self, FRAME_SIZE, Frames, PhysAddr};

use super::buddy::{Buddy, Frame};
use crate::process::errno::Errno;
use crate::world::Stretch;

/// What programs leave to the kernel: this part of the memory, and not less than these bytes.
const RESERVE_PART: u64 = 64;
const RESERVE_MIN: u64 = 2 << 20;

static ZONES: spin::Mutex<Zones> = spin::Mutex::new(Zones {
    first: None,
    more: Vec::new(),
});
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// Bytes that are free: changed only by who has the zones.
static FREE: AtomicU64 = AtomicU64::new(0);

/// The first is there before the heap is.
struct Zones {
    first: Option<Buddy<'static>>,
    more: Vec<Buddy<'static>>,
}

impl Zones {
    fn all(&mut self) -> impl Iterator<Item = &mut Buddy<'static>> {
        self.first.iter_mut().chain(&mut self.more)
    }
}

/// Takes a stretch into use, all but `hole`. What is known of its frames lies at its beginning, or
/// behind the hole if that begins there.
///
/// # Safety
/// It is memory of this kernel's, in the direct map, and nobody uses it but for the hole.
pub(crate) unsafe fn add(stretch: Stretch, hole: Stretch) {
    let first = stretch.start.div_ceil(FRAME_SIZE);
    let end = stretch.end() / FRAME_SIZE;
    let count = end.saturating_sub(first);
    let table_frames = (count * size_of::<Frame>() as u64).div_ceil(FRAME_SIZE);
    let (hole_start, hole_end) = hole_frames(&hole, first, end);
    // Beside the hole, before it if there is room.
    let table = match hole_start - first >= table_frames {
        true => first,
        false => hole_end,
    };
    if count == 0 || table + table_frames >= end {
        return;
    }
    let place = PhysAddr(table * FRAME_SIZE).in_direct_map().cast::<Frame>();
    let frames = unsafe {
        // SAFETY: 1. the frames from `table` on are free, by the caller, and no others are given to
        // the buddy system below, so the slice is alone. 2. It is written before it is made.
        for index in 0..count as usize {
            place.add(index).write(Frame::TAKEN);
        }
        core::slice::from_raw_parts_mut(place, count as usize)
    };
    let mut buddy = Buddy::new(frames, first);
    let taken = (table, table + table_frames);
    let mut holes = [taken, (hole_start, hole_end)];
    holes.sort_unstable();
    let mut next = first;
    for (from, to) in holes {
        buddy.give_range(next, from.max(next));
        next = next.max(to);
    }
    buddy.give_range(next, end);
    let bytes = buddy.free_frames() * FRAME_SIZE;
    TOTAL.fetch_add(bytes, Ordering::Relaxed);
    FREE.fetch_add(bytes, Ordering::Relaxed);
    keep(buddy);
}

/// The hole's frames within a stretch; an empty one at its end if there is none.
fn hole_frames(hole: &Stretch, first: u64, end: u64) -> (u64, u64) {
    let from = (hole.start / FRAME_SIZE).clamp(first, end);
    let to = hole.end().div_ceil(FRAME_SIZE).clamp(first, end);
    if from == to { (end, end) } else { (from, to) }
}

fn keep(buddy: Buddy<'static>) {
    let mut zones = ZONES.lock();
    if zones.first.is_none() {
        zones.first = Some(buddy);
        return;
    }
    // Room for it may have to come from the zones themselves.
    drop(zones);
    let mut more = Vec::with_capacity(ZONES.lock().more.len() + 1);
    let mut zones = ZONES.lock();
    more.append(&mut zones.more);
    more.push(buddy);
    let old = core::mem::replace(&mut zones.more, more);
    drop(zones);
    drop(old);
}

/// Takes a block of 2^order frames, as it is.
#[must_use]
pub fn take_block(order: u8) -> Option<PhysAddr> {
    let mut zones = ZONES.lock();
    let number = zones.all().find_map(|zone| zone.take(order))?;
    FREE.fetch_sub(FRAME_SIZE << order, Ordering::Relaxed);
    Some(PhysAddr(number * FRAME_SIZE))
}

/// Takes a block for a program. The last of the memory is not for programs: the kernel goes on when
/// they have used up all the rest.
#[must_use]
pub fn take_for_program(order: u8) -> Option<PhysAddr> {
    if !leaves(FRAME_SIZE << order, reserve()) {
        return None;
    }
    take_block(order)
}

/// What programs leave to the kernel.
fn reserve() -> u64 {
    (total_bytes() / RESERVE_PART).max(RESERVE_MIN)
}

/// Whether so much can be taken, and that much is left.
fn leaves(bytes: u64, rest: u64) -> bool {
    free_bytes().checked_sub(bytes) >= Some(rest)
}

/// Whether a program may have the kernel keep so much more for it: for what the kernel itself needs
/// to go on, the reserve stays. To be asked wherever a program decides how much there will be.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn has_room(bytes: u64) -> Result<(), Errno> {
    room(bytes, reserve())
}

/// The same for what a program needs to give memory back: half of the reserve stays.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn has_room_to_free(bytes: u64) -> Result<(), Errno> {
    room(bytes, reserve() / 2)
}

fn room(bytes: u64, rest: u64) -> Result<(), Errno> {
    // Before there is any memory, and on a host, there is only the heap.
    let may = total_bytes() == 0 || leaves(bytes, rest);
    may.then_some(()).ok_or(Errno::ENOMEM)
}

/// Makes room in a list for so many more, if a program may have the kernel keep as much.
///
/// # Errors
/// [`Errno::ENOMEM`]; the list is as it was.
pub fn reserve_in<T>(list: &mut Vec<T>, more: usize) -> Result<(), Errno> {
    grow(list, more, has_room)
}

/// The same for what a program needs to give memory back: see [`has_room_to_free`].
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
    // A list grows to twice its size, and is copied.
    let count = (2 * list.capacity()).max(list.len().saturating_add(more));
    has_room(count.saturating_mul(size_of::<T>()) as u64)?;
    list.try_reserve(more).map_err(|_| Errno::ENOMEM)
}

/// So many bytes, all zero, if a program may have the kernel keep as much.
///
/// # Errors
/// [`Errno::ENOMEM`].
pub fn zeroed(size: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    reserve_in(&mut bytes, size)?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// Gives a block back that [`take_block`] gave.
///
/// # Panics
/// If it was not.
pub fn give_block(block: PhysAddr, order: u8) {
    let number = block.0 / FRAME_SIZE;
    let mut zones = ZONES.lock();
    let zone = zones.all().find(|zone| zone.holds(number));
    zone.expect("a block of this kernel's").give(number, order);
    FREE.fetch_add(FRAME_SIZE << order, Ordering::Relaxed);
}

/// Bytes that are free.
#[must_use]
pub fn free_bytes() -> u64 {
    FREE.load(Ordering::Relaxed)
}

/// Bytes that there were to begin with.
#[must_use]
pub fn total_bytes() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// Frames for the kernel's own page table.
#[derive(Clone, Copy, Debug)]
pub struct Pool;

/// Frames for programs' page tables. They may take half of what programs leave to the kernel: so a
/// program can give back a part of a large page, which takes a table, when memory is used up.
#[derive(Clone, Copy, Debug)]
pub struct ProgramTables;

impl Frames for ProgramTables {
    fn take(&mut self) -> Option<PhysAddr> {
        has_room_to_free(FRAME_SIZE).ok()?;
        Pool.take()
    }

    fn give(&mut self, frame: PhysAddr) {
        Pool.give(frame);
    }
}

impl Frames for Pool {
    fn take(&mut self) -> Option<PhysAddr> {
        let frame = take_block(0)?;
        // SAFETY: it has just been taken, so nobody else has it.
        unsafe { memory::clear(frame, FRAME_SIZE) };
        Some(frame)
    }

    fn give(&mut self, frame: PhysAddr) {
        give_block(frame, 0);
    }
}
