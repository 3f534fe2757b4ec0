//! Calls on the program's memory.

use bitflags::bitflags;
use insula_bare::user::USER_END;

use super::file_mapping::{FilePart, map_file};
use super::number;
use crate::memory::{free_bytes, total_bytes};
use crate::process::address_space::{Placement, Target};
use crate::process::errno::Errno;
use crate::process::vma::{Protection, VmaFlags};
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

/// Advice values of madvise(2) that are also delegated to the base.
const POPULATE_READ: u64 = 22;
const POPULATE_WRITE: u64 = 23;

/// Effect of an advice of madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Advice {
    /// Discards pages.
    Discard,
    /// Discards private anonymous pages.
    Free,
    /// Populates pages.
    Populate,
    /// Sets the first flags of VMAs, and clears the second.
    SetFlags(VmaFlags, VmaFlags),
    /// None: it concerns only performance.
    Hint,
}

impl Advice {
    /// Decodes an advice (include/uapi/asm-generic/mman-common.h of Linux).
    ///
    /// # Errors
    /// [`Errno::EPERM`] for advice that injects errors; [`Errno::EINVAL`] for all else that is not
    /// supported.
    fn of(number: u64) -> Result<Self, Errno> {
        let none = VmaFlags::empty();
        Ok(match number {
            // DONTNEED, DONTNEED_LOCKED.
            4 | 24 => Self::Discard,
            8 => Self::Free,
            POPULATE_READ | POPULATE_WRITE => Self::Populate,
            10 => Self::SetFlags(VmaFlags::DONT_FORK, none),
            11 => Self::SetFlags(none, VmaFlags::DONT_FORK),
            16 => Self::SetFlags(VmaFlags::DONT_DUMP, none),
            17 => Self::SetFlags(none, VmaFlags::DONT_DUMP),
            18 => Self::SetFlags(VmaFlags::WIPE_ON_FORK, none),
            19 => Self::SetFlags(none, VmaFlags::WIPE_ON_FORK),
            // NORMAL, RANDOM, SEQUENTIAL, WILLNEED; MERGEABLE, UNMERGEABLE; HUGEPAGE, NOHUGEPAGE;
            // COLD, PAGEOUT.
            0..=3 | 12..=15 | 20 | 21 => Self::Hint,
            // HWPOISON, SOFT_OFFLINE.
            100 | 101 => return Err(Errno::EPERM),
            // REMOVE, which would punch a hole in shared memory; COLLAPSE; GUARD_INSTALL,
            // GUARD_REMOVE.
            _ => return Err(Errno::EINVAL),
        })
    }
}

fn protection(prot: u64) -> Protection {
    let protection = Protection::from_bits_truncate(prot as u8);
    // On this processor, what can be written or executed can be read.
    match protection.is_empty() {
        true => protection,
        false => protection | Protection::READ,
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

/// mmap(2). Writable shared mappings of files are refused: they would need the base's page cache.
pub(super) fn mmap(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    let [address, size, prot, flags, file, offset] = a;
    let flags = MapFlags::from_bits_truncate(flags);
    let (protection, size) = (protection(prot), whole_pages(size)?);
    if !flags.intersects(MapFlags::SHARED | MapFlags::PRIVATE) || !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let place = if flags.contains(MapFlags::FIXED_NOREPLACE) {
        Placement::FixedNoReplace(address)
    } else if flags.contains(MapFlags::FIXED) {
        Placement::Fixed(address)
    } else {
        Placement::Hint(address)
    };
    // Both bits: MAP_SHARED_VALIDATE.
    let is_shared = flags.contains(MapFlags::SHARED);
    if flags.contains(MapFlags::ANONYMOUS) {
        let start = thread.with_space(|space, invalidate| match is_shared {
            true => space.map_shared(place, size, protection, invalidate),
            false => space.map(place, size, protection, invalidate),
        })?;
        if flags.contains(MapFlags::POPULATE) && protection.contains(Protection::READ) {
            let advice = match protection.contains(Protection::WRITE) {
                true => POPULATE_WRITE,
                false => POPULATE_READ,
            };
            // The mapping succeeds in any case.
            let _ = populate(thread, start, start + size, advice);
        }
        return Ok(start);
    }
    map_file(
        thread,
        place,
        (size, protection),
        FilePart { file, offset },
        is_shared,
    )
}

/// mremap(2).
pub(super) fn mremap(thread: &mut Thread, a: [u64; 6]) -> Result<u64, Errno> {
    const MAY_MOVE: u64 = 1;
    const FIXED: u64 = 2;
    let [old, old_size, size, flags, to, _] = a;
    let to = match flags {
        0 => Target::InPlace,
        MAY_MOVE => Target::MayMove,
        flags if flags == MAY_MOVE | FIXED => Target::Fixed(to),
        _ => return Err(Errno::EINVAL),
    };
    let size = whole_pages(size)?;
    if old_size == 0 {
        // Linux would map shared memory a second time.
        let is_there = thread.process.space().covers(old, old.saturating_add(PAGE));
        return Err(if is_there {
            Errno::EINVAL
        } else {
            Errno::EFAULT
        });
    }
    let old_size = whole_pages(old_size)?;
    let old = (old, old.checked_add(old_size).ok_or(Errno::EINVAL)?);
    thread.with_space(|space, invalidate| space.remap(old, size, to, invalidate))
}

/// munmap(2).
pub(super) fn munmap(thread: &mut Thread, start: u64, size: u64) -> Result<u64, Errno> {
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::EINVAL)?;
    if !start.is_multiple_of(PAGE) || end > USER_END {
        return Err(Errno::EINVAL);
    }
    thread.with_space(|space, invalidate| {
        let (first, last) = space.bounds();
        let (start, end) = (start.max(first), end.min(last));
        // Outside the program's addresses nothing is mapped.
        if start < end {
            space.unmap(start, end, invalidate)
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
    prot: u64,
) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if size == 0 {
        return Ok(0);
    }
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::ENOMEM)?;
    let protection = protection(prot);
    thread.with_space(|space, invalidate| space.protect(start, end, protection, invalidate))?;
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
    thread.with_space(|space, invalidate| match advice {
        Advice::Discard => space.discard(start, end, invalidate),
        Advice::Free => space.free_lazily(start, end, invalidate),
        Advice::SetFlags(set, clear) => space.set_flags((start, end), set, clear),
        Advice::Populate | Advice::Hint => Ok(()),
    })?;
    match advice {
        Advice::Populate => populate(thread, start, end, number),
        _ => Ok(0),
    }
}

/// Populates a range, for the program and, ahead of its calls, for the base.
fn populate(thread: &mut Thread, start: u64, end: u64, advice: u64) -> Result<u64, Errno> {
    let access = match advice {
        POPULATE_WRITE => Protection::WRITE,
        _ => Protection::READ,
    };
    {
        let mut space = thread.process.space();
        if !space.allows(start, end, access) {
            return Err(Errno::EINVAL);
        }
        // Populate here first: if the base took a remote fault without free memory, the program
        // would be killed. All inaccessible addresses fail alike.
        let populated = space.populate(start, end, access);
        populated.map_err(|error| match error {
            Errno::EIO => Errno::EFAULT,
            error => error,
        })?;
    }
    thread.remote_syscall(number::MADVISE, [start, end - start, advice, 0, 0, 0])
}

/// sysinfo(2): memory is the node's; load and processes are the base's.
pub(super) fn sysinfo(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    /// Offsets in `struct sysinfo`: `totalram` and five more words; `totalhigh` and one more;
    /// `mem_unit`.
    const AT_MEMORY: u64 = 32;
    const AT_HIGH: u64 = 88;
    const AT_UNIT: u64 = 104;
    thread.remote_syscall(number::SYSINFO, [to, 0, 0, 0, 0, 0])?;
    let mut space = thread.process.space();
    let words = [total_bytes(), free_bytes(), 0, 0, 0, 0].map(u64::to_le_bytes);
    space.write(to.wrapping_add(AT_MEMORY), words.as_flattened())?;
    space.write(to.wrapping_add(AT_HIGH), &[0; 16])?;
    space.write(to.wrapping_add(AT_UNIT), &1_u32.to_le_bytes())?;
    Ok(0)
}

/// msync(2): mapped files are copies, nothing is written back.
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

    /// Advice that changes what the program reads is implemented or refused.
    #[test]
    fn only_hints_are_ignored() {
        let hints = (0..200).filter(|&number| Advice::of(number) == Ok(Advice::Hint));
        let hints: std::vec::Vec<u64> = hints.collect();
        assert_eq!(hints, [0, 1, 2, 3, 12, 13, 14, 15, 20, 21]);
        for unknown in [5, 9, 25, 99, 102, 103, u64::MAX] {
            assert_eq!(Advice::of(unknown), Err(Errno::EINVAL), "{unknown}");
        }
        for (number, flag) in [
            (10, VmaFlags::DONT_FORK),
            (16, VmaFlags::DONT_DUMP),
            (18, VmaFlags::WIPE_ON_FORK),
        ] {
            let none = VmaFlags::empty();
            assert_eq!(Advice::of(number), Ok(Advice::SetFlags(flag, none)));
            assert_eq!(Advice::of(number + 1), Ok(Advice::SetFlags(none, flag)));
        }
    }
}
