//! Calls about the program's memory.

use bitflags::bitflags;
use insula_bare::user::USER_END;

use super::number;
use crate::process::areas::Rights;
use crate::process::errno::Errno;
use crate::process::space::{Place, Target};
use crate::process::{PAGE, Thread, fill};

bitflags! {
    /// Flags of mmap(2).
    #[derive(Clone, Copy)]
    struct MapFlags: u64 {
        const SHARED = 0x01;
        const PRIVATE = 0x02;
        const FIXED = 0x10;
        const ANONYMOUS = 0x20;
        const POPULATE = 0x8000;
        const FIXED_NOREPLACE = 0x10_0000;
    }
}

/// Advice of madvise(2) that has an effect here.
const DONT_NEED: u64 = 4;
const FREE: u64 = 8;
const POPULATE_READ: u64 = 22;
const POPULATE_WRITE: u64 = 23;

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
    // Both at once are shared memory whose other flags are to be checked.
    let is_shared = flags.contains(MapFlags::SHARED);
    if flags.contains(MapFlags::ANONYMOUS) {
        let start = thread.with_space(|space, release| match is_shared {
            true => space.map_shared(place, size, rights, release),
            false => space.map(place, size, rights, release),
        })?;
        if flags.contains(MapFlags::POPULATE) && rights.contains(Rights::READ) {
            let advice = match rights.contains(Rights::WRITE) {
                true => POPULATE_WRITE,
                false => POPULATE_READ,
            };
            // It is there in any case.
            let _ = populate(thread, start, start + size, advice);
        }
        return Ok(start);
    }
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

/// mremap(2).
pub(super) fn mremap(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    const MAY_MOVE: u64 = 1;
    const FIXED: u64 = 2;
    let [old, old_size, size, flags, to, _] = a;
    let to = match flags {
        0 => Target::Here,
        MAY_MOVE => Target::Anywhere,
        flags if flags == MAY_MOVE | FIXED => Target::At(to),
        _ => return Err(Errno::EINVAL),
    };
    let size = whole_pages(size)?;
    if old_size == 0 {
        // It would show shared memory a second time.
        let is_there = thread.process.space().covers(old, old.saturating_add(PAGE));
        return Err(if is_there {
            Errno::EINVAL
        } else {
            Errno::EFAULT
        });
    }
    let old_size = whole_pages(old_size)?;
    let old = (old, old.checked_add(old_size).ok_or(Errno::EINVAL)?);
    thread.with_space(|space, release| space.remap(old, size, to, release))
}

/// munmap(2).
pub(super) fn munmap(thread: &mut Thread, start: u64, size: u64) -> Result<u64, Errno> {
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::EINVAL)?;
    if !start.is_multiple_of(PAGE) || end > USER_END {
        return Err(Errno::EINVAL);
    }
    thread.with_space(|space, release| {
        let (first, last) = space.bounds();
        let (start, end) = (start.max(first), end.min(last));
        // Where no program has anything there is nothing to unmap.
        if start < end {
            space.unmap(start, end, release)
        } else {
            Ok(())
        }
    })?;
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
    match advice {
        DONT_NEED | FREE => {
            thread.with_space(|space, release| space.discard(start, end, release))?;
            Ok(0)
        }
        POPULATE_READ | POPULATE_WRITE => populate(thread, start, end, advice),
        _ => Ok(0),
    }
}

/// Makes a range present, for the program and ahead of its calls for the base as well.
fn populate(thread: &mut Thread, start: u64, end: u64, advice: u64) -> Result<u64, Errno> {
    let access = match advice {
        POPULATE_WRITE => Rights::WRITE,
        _ => Rights::READ,
    };
    {
        let mut space = thread.process.space();
        if !space.permits(start, end, access) {
            return Err(Errno::EINVAL);
        }
        space.populate(start, end, access);
    }
    thread.call(number::MADVISE, [start, end - start, advice, 0, 0, 0])
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
