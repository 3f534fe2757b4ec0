//! Room in memory: what the kernel allocates on behalf of a program must not touch its reserve.

use alloc::vec::Vec;

use crate::hw::memory::frames::{leaves_free, reserve, total_bytes};

/// There is too little memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Checks that the kernel may allocate `bytes` on behalf of a program without using its reserve. To
/// be called wherever a program determines the size of an allocation.
///
/// # Errors
/// [`NoMemory`].
pub fn has_room(bytes: u64) -> Result<(), NoMemory> {
    room(bytes, reserve())
}

/// Like [`has_room`], for what is needed to free a program's memory: may use half of the reserve.
///
/// # Errors
/// [`NoMemory`].
pub fn has_room_to_free(bytes: u64) -> Result<(), NoMemory> {
    room(bytes, reserve() / 2)
}

fn room(bytes: u64, rest: u64) -> Result<(), NoMemory> {
    // On a host, and before memory is added, there is only the heap.
    let may = total_bytes() == 0 || leaves_free(bytes, rest);
    may.then_some(()).ok_or(NoMemory)
}

/// Reserves room for `more` entries in a list, on behalf of a program.
///
/// # Errors
/// [`NoMemory`]; the list is as it was.
pub fn reserve_in<T>(list: &mut Vec<T>, more: usize) -> Result<(), NoMemory> {
    grow(list, more, has_room)
}

/// Like [`reserve_in`], for what is needed to free memory: see [`has_room_to_free`].
///
/// # Errors
/// [`NoMemory`]; the list is as it was.
pub fn reserve_to_free<T>(list: &mut Vec<T>, more: usize) -> Result<(), NoMemory> {
    grow(list, more, has_room_to_free)
}

fn grow<T>(
    list: &mut Vec<T>,
    more: usize,
    has_room: impl FnOnce(u64) -> Result<(), NoMemory>,
) -> Result<(), NoMemory> {
    if list.capacity() - list.len() >= more {
        return Ok(());
    }
    // A list grows to twice its capacity, and is copied.
    let count = (2 * list.capacity()).max(list.len().saturating_add(more));
    has_room(count.saturating_mul(size_of::<T>()) as u64)?;
    list.try_reserve(more).map_err(|_| NoMemory)
}

/// Allocates zeroed bytes on behalf of a program.
///
/// # Errors
/// [`NoMemory`].
pub fn zeroed(size: usize) -> Result<Vec<u8>, NoMemory> {
    let mut bytes = Vec::new();
    reserve_in(&mut bytes, size)?;
    bytes.resize(size, 0);
    Ok(bytes)
}
