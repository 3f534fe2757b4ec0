//! Calls about the program's memory.

use bitflags::bitflags;
use insula_bare::user::USER_END;

use super::mapping::{Part, map_file};
use super::number;
use crate::memory::{free_bytes, total_bytes};
use crate::process::areas::{AreaFlags, Rights};
use crate::process::errno::Errno;
use crate::process::space::{Place, Target};
use crate::process::{PAGE, Thread};

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

/// Advice of madvise(2) that the base is asked for as well.
const POPULATE_READ: u64 = 22;
const POPULATE_WRITE: u64 = 23;

/// What is done about an advice of madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// Pages are given back.
    Discard,
    /// Pages of the program's own are given back.
    Free,
    /// Pages are made present.
    Populate,
    /// Areas get these flags, and lose those.
    Change(AreaFlags, AreaFlags),
    /// Nothing: it is about how fast something is, and never about what the program finds.
    Hint,
}

impl Advice {
    /// By its number (include/uapi/asm-generic/mman-common.h of Linux).
    ///
    /// # Errors
    /// [`Errno::EPERM`] for what is for tests of Linux; [`Errno::EINVAL`] for all else that is not done.
    fn of(number: u64) -> Result<Self, Errno> {
        let none = AreaFlags::empty();
        Ok(match number {
            // DONTNEED, and the same of locked pages.
            4 | 24 => Self::Discard,
            8 => Self::Free,
            POPULATE_READ | POPULATE_WRITE => Self::Populate,
            10 => Self::Change(AreaFlags::DONT_FORK, none),
            11 => Self::Change(none, AreaFlags::DONT_FORK),
            16 => Self::Change(AreaFlags::DONT_DUMP, none),
            17 => Self::Change(none, AreaFlags::DONT_DUMP),
            18 => Self::Change(AreaFlags::WIPE_ON_FORK, none),
            19 => Self::Change(none, AreaFlags::WIPE_ON_FORK),
            // NORMAL, RANDOM, SEQUENTIAL, WILLNEED; MERGEABLE, UNMERGEABLE; HUGEPAGE, NOHUGEPAGE;
            // COLD, PAGEOUT.
            0..=3 | 12..=15 | 20 | 21 => Self::Hint,
            // HWPOISON, SOFT_OFFLINE.
            100 | 101 => return Err(Errno::EPERM),
            // REMOVE would give back what is shared; COLLAPSE; GUARD_INSTALL, GUARD_REMOVE.
            _ => return Err(Errno::EINVAL),
        })
    }
}

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

/// mmap(2). A shared mapping that can be written would have to be the base's page cache.
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
    map_file(
        thread,
        place,
        (size, rights),
        Part { file, offset },
        is_shared,
    )
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

/// madvise(2).
pub(super) fn madvise(
    thread: &mut Thread,
    start: u64,
    size: u64,
    number: u64,
) -> Result<u64, Errno> {
    let advice = Advice::of(u64::from(number as u32))?;
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
    thread.with_space(|space, release| match advice {
        Advice::Discard => space.discard(start, end, release),
        Advice::Free => space.free_lazily(start, end, release),
        Advice::Change(set, clear) => space.set_flags((start, end), set, clear),
        Advice::Populate | Advice::Hint => Ok(()),
    })?;
    match advice {
        Advice::Populate => populate(thread, start, end, number),
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
        // The base would ask for what is not there now, and a call of a program for which there is no
        // memory then ends it. What cannot be accessed is told alike, whatever is behind it.
        let populated = space.populate(start, end, access);
        populated.map_err(|error| match error {
            Errno::EIO => Errno::EFAULT,
            error => error,
        })?;
    }
    thread.call(number::MADVISE, [start, end - start, advice, 0, 0, 0])
}

/// sysinfo(2): memory is the node's; of load and processes the base tells.
pub(super) fn sysinfo(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    /// Of `struct sysinfo`: six words from `totalram` on, two from `totalhigh` on, `mem_unit`.
    const AT_MEMORY: u64 = 32;
    const AT_HIGH: u64 = 88;
    const AT_UNIT: u64 = 104;
    thread.call(number::SYSINFO, [to, 0, 0, 0, 0, 0])?;
    let mut space = thread.process.space();
    let words = [total_bytes(), free_bytes(), 0, 0, 0, 0].map(u64::to_le_bytes);
    space.write(to.wrapping_add(AT_MEMORY), words.as_flattened())?;
    space.write(to.wrapping_add(AT_HIGH), &[0; 16])?;
    space.write(to.wrapping_add(AT_UNIT), &1_u32.to_le_bytes())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What would change what the program finds is done, or refused.
    #[test]
    fn no_advice_is_only_said_to_be_followed() {
        let hints = (0..200).filter(|&number| Advice::of(number) == Ok(Advice::Hint));
        let hints: std::vec::Vec<u64> = hints.collect();
        assert_eq!(hints, [0, 1, 2, 3, 12, 13, 14, 15, 20, 21]);
        for unknown in [5, 9, 25, 99, 102, 103, u64::MAX] {
            assert_eq!(Advice::of(unknown), Err(Errno::EINVAL), "{unknown}");
        }
        for (number, flag) in [
            (10, AreaFlags::DONT_FORK),
            (16, AreaFlags::DONT_DUMP),
            (18, AreaFlags::WIPE_ON_FORK),
        ] {
            let none = AreaFlags::empty();
            assert_eq!(Advice::of(number), Ok(Advice::Change(flag, none)));
            assert_eq!(Advice::of(number + 1), Ok(Advice::Change(none, flag)));
        }
    }
}
