//! Calls about the program's memory.

use bitflags::bitflags;

use crate::process::areas::Rights;
use crate::process::errno::Errno;
use crate::process::space::Place;
use crate::process::{PAGE, Thread, fill};

bitflags! {
    /// Flags of mmap(2).
    #[derive(Clone, Copy)]
    struct MapFlags: u64 {
        const SHARED = 0x01;
        const PRIVATE = 0x02;
        const FIXED = 0x10;
        const ANONYMOUS = 0x20;
        const FIXED_NOREPLACE = 0x10_0000;
    }
}

/// Advice of madvise(2) that has an effect here.
const DONT_NEED: u64 = 4;
const FREE: u64 = 8;

fn rights(protection: u64) -> Rights {
    let rights = Rights::from_bits_truncate(protection as u8);
    // What can be written or executed can be read, on this processor.
    match rights.is_empty() {
        true => rights,
        false => rights | Rights::READ,
    }
}

fn whole_pages(size: u64) -> Result<u64, Errno> {
    let size = size.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
    if size == 0 {
        Err(Errno::EINVAL)
    } else {
        Ok(size)
    }
}

/// mmap(2). A file is copied, by the base, to where the program sees it: so it is the program's own,
/// as MAP_PRIVATE says. A shared mapping that can be written would have to be the base's page cache.
pub(super) fn mmap(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [address, size, protection, flags, file, offset] = a;
    let flags = MapFlags::from_bits_truncate(flags);
    let (rights, size) = (rights(protection), whole_pages(size)?);
    if !flags.intersects(MapFlags::SHARED | MapFlags::PRIVATE) || !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let place = if flags.contains(MapFlags::FIXED_NOREPLACE) {
        Place::AtIfFree(address)
    } else if flags.contains(MapFlags::FIXED) {
        Place::At(address)
    } else {
        Place::Near(address)
    };
    if flags.contains(MapFlags::ANONYMOUS) {
        return thread.with_space(|space, release| space.map(place, size, rights, release));
    }
    let is_shared = !flags.contains(MapFlags::PRIVATE);
    if is_shared && rights.contains(Rights::WRITE) {
        return Err(Errno::ENODEV);
    }
    map_file(thread, place, size, rights, (file, offset))
}

fn map_file(
    thread: &mut Thread,
    place: Place,
    size: u64,
    rights: Rights,
    from: (u64, u64),
) -> Result<u64, Errno> {
    let writable = Rights::READ | Rights::WRITE;
    let start = thread.with_space(|space, release| space.map(place, size, writable, release))?;
    let filled = fill(thread, from.0, start, from.1, size);
    let done = filled.and_then(|()| match rights == writable {
        true => Ok(()),
        false => {
            thread.with_space(|space, release| space.protect(start, start + size, rights, release))
        }
    });
    if let Err(error) = done {
        thread.with_space(|space, release| space.unmap(start, start + size, release))?;
        return Err(error);
    }
    Ok(start)
}

/// munmap(2).
pub(super) fn munmap(thread: &mut Thread, start: u64, size: u64) -> Result<u64, Errno> {
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::EINVAL)?;
    thread.with_space(|space, release| space.unmap(start, end, release))?;
    Ok(0)
}

/// mprotect(2).
pub(super) fn mprotect(
    thread: &mut Thread,
    start: u64,
    size: u64,
    protection: u64,
) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if size == 0 {
        return Ok(0);
    }
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::ENOMEM)?;
    let rights = rights(protection);
    thread.with_space(|space, release| space.protect(start, end, rights, release))?;
    Ok(0)
}

/// madvise(2): pages that are not needed are given back; all else is advice that is not needed.
pub(super) fn madvise(
    thread: &mut Thread,
    start: u64,
    size: u64,
    advice: u64,
) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if size == 0 {
        return Ok(0);
    }
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::EINVAL)?;
    if !thread.process.space().covers(start, end) {
        return Err(Errno::ENOMEM);
    }
    if matches!(advice, DONT_NEED | FREE) {
        thread.with_space(|space, release| space.discard(start, end, release))?;
    }
    Ok(0)
}

/// msync(2): there is nothing to write back.
pub(super) fn msync(thread: &mut Thread, start: u64, size: u64) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let end = start.checked_add(size).ok_or(Errno::ENOMEM)?;
    match size == 0 || thread.process.space().covers(start, end) {
        true => Ok(0),
        false => Err(Errno::ENOMEM),
    }
}
