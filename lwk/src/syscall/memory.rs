//! Calls on the program's memory.

use alloc::boxed::Box;

use bitflags::bitflags;
use insula_bare::user::USER_END;

use crate::hw::memory::frames::{free_bytes, total_bytes};
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{PAGE, Protection, VmaFlags};
use crate::syscall::delegate::finish;
use crate::syscall::file_mapping::{FilePart, map_file};
use crate::task::address_space::remap::{Progress, Target};
use crate::task::address_space::stop::Stop;
use crate::task::address_space::{AddressSpace, Placement};
use crate::task::flow::Flow;
use crate::task::mm::Step;
use crate::task::remote;
use crate::task::thread::Thread;

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

/// Changes the address space: at once, unless somebody else is changing it, or the base has to
/// invalidate a range first. `operation` is called again after each invalidation that it asks for.
fn change(
    thread: Box<Thread>,
    mut operation: impl FnMut(&mut AddressSpace) -> Result<u64, Stop> + Send + 'static,
) -> Flow {
    let Some(guard) = thread.process.mm().try_change() else {
        return Flow::handler(thread, |mut thread| async move {
            let result = thread.change_space(operation).await;
            finish(thread, result)
        });
    };
    match guard.begin(&mut operation) {
        Step::Done(result) => {
            drop(guard);
            finish(thread, result)
        }
        step => Flow::handler(thread, |mut thread| async move {
            let result = thread.finish_change(guard, step, operation).await;
            finish(thread, result)
        }),
    }
}

/// Arguments of mmap(2).
#[derive(Clone, Copy, Debug)]
struct Mapping {
    place: Placement,
    size: u64,
    protection: Protection,
    is_shared: bool,
    populates: bool,
    /// The file; `None` for anonymous memory.
    part: Option<FilePart>,
}

impl Mapping {
    fn of(a: [u64; 6]) -> Result<Self, Errno> {
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
        let is_anonymous = flags.contains(MapFlags::ANONYMOUS);
        Ok(Self {
            place,
            size,
            protection,
            // Both bits: MAP_SHARED_VALIDATE.
            is_shared: flags.contains(MapFlags::SHARED),
            populates: flags.contains(MapFlags::POPULATE) && protection.contains(Protection::READ),
            part: (!is_anonymous).then_some(FilePart { file, offset }),
        })
    }

    /// Maps anonymous memory.
    fn map(&self, space: &mut AddressSpace) -> Result<u64, Stop> {
        match self.is_shared {
            true => space.map_shared(self.place, self.size, self.protection),
            false => space.map(self.place, self.size, self.protection),
        }
    }

    /// Maps a file, or populated memory.
    async fn map_with_base(self, thread: &mut Thread) -> Result<u64, Errno> {
        let Self {
            place,
            size,
            protection,
            ..
        } = self;
        if let Some(part) = self.part {
            return map_file(thread, place, (size, protection), part, self.is_shared).await;
        }
        let start = thread.change_space(move |space| self.map(space)).await?;
        let advice = match protection.contains(Protection::WRITE) {
            true => POPULATE_WRITE,
            false => POPULATE_READ,
        };
        // The mapping succeeds in any case.
        let _ = populate(thread, start, start + size, advice).await;
        Ok(start)
    }
}

/// mmap(2). Writable shared mappings of files are refused: they would need the base's page cache.
pub(super) fn mmap(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    match Mapping::of(a) {
        Ok(mapping) if mapping.part.is_none() && !mapping.populates => {
            change(thread, move |space| mapping.map(space))
        }
        Ok(mapping) => Flow::handler(thread, move |mut thread| async move {
            let result = mapping.map_with_base(&mut thread).await;
            finish(thread, result)
        }),
        Err(error) => finish(thread, Err(error)),
    }
}

/// mremap(2).
pub(super) fn mremap(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let (old, size, target) = match remap_arguments(&thread, a) {
        Ok(arguments) => arguments,
        Err(error) => return finish(thread, Err(error)),
    };
    let mut progress = Progress::default();
    change(thread, move |space| {
        space.remap(old, size, target, &mut progress)
    })
}

/// Returns the old range, the new size, and where it may go.
fn remap_arguments(thread: &Thread, a: [u64; 6]) -> Result<((u64, u64), u64, Target), Errno> {
    const MAY_MOVE: u64 = 1;
    const FIXED: u64 = 2;
    let [old, old_size, size, flags, to, _] = a;
    let target = match flags {
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
    let end = old.checked_add(old_size).ok_or(Errno::EINVAL)?;
    Ok(((old, end), size, target))
}

/// brk(2).
pub(super) fn brk(thread: Box<Thread>, [wanted, ..]: [u64; 6]) -> Flow {
    change(thread, move |space| space.move_heap_end(wanted))
}

/// munmap(2).
pub(super) fn munmap(thread: Box<Thread>, [start, size, ..]: [u64; 6]) -> Flow {
    let end = whole_pages(size).map(|size| start.checked_add(size).filter(|&end| end <= USER_END));
    let (true, Ok(Some(end))) = (start.is_multiple_of(PAGE), end) else {
        return finish(thread, Err(Errno::EINVAL));
    };
    change(thread, move |space| {
        let (first, last) = space.bounds();
        let (start, end) = (start.max(first), end.min(last));
        // Outside the program's addresses nothing is mapped.
        if start < end {
            space.unmap(start, end)?;
        }
        Ok(0)
    })
}

/// mprotect(2).
pub(super) fn mprotect(thread: Box<Thread>, [start, size, prot, ..]: [u64; 6]) -> Flow {
    if !start.is_multiple_of(PAGE) {
        return finish(thread, Err(Errno::EINVAL));
    }
    if size == 0 {
        return finish(thread, Ok(0));
    }
    let Some(end) = whole_pages(size)
        .ok()
        .and_then(|size| start.checked_add(size))
    else {
        return finish(thread, Err(Errno::ENOMEM));
    };
    let protection = protection(prot);
    change(thread, move |space| {
        space.protect(start, end, protection).map(|()| 0)
    })
}

/// madvise(2).
pub(super) fn madvise(thread: Box<Thread>, [start, size, number, ..]: [u64; 6]) -> Flow {
    match advised(&thread, start, size, number) {
        Ok(Some((advice, end))) => advise(thread, (start, end), advice, number),
        Ok(None) => finish(thread, Ok(0)),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Returns the advice and the end of its range; `None` for an empty one.
fn advised(
    thread: &Thread,
    start: u64,
    size: u64,
    number: u64,
) -> Result<Option<(Advice, u64)>, Errno> {
    let advice = Advice::of(u64::from(number as u32))?;
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if size == 0 {
        return Ok(None);
    }
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::EINVAL)?;
    match thread.process.space().covers(start, end) {
        true => Ok(Some((advice, end))),
        false => Err(Errno::ENOMEM),
    }
}

fn advise(thread: Box<Thread>, (start, end): (u64, u64), advice: Advice, number: u64) -> Flow {
    match advice {
        Advice::Hint => finish(thread, Ok(0)),
        Advice::Populate => Flow::handler(thread, move |mut thread| async move {
            let result = populate(&mut thread, start, end, number).await;
            finish(thread, result)
        }),
        Advice::SetFlags(set, clear) => change(thread, move |space| {
            space.set_flags((start, end), set, clear)?;
            Ok(0)
        }),
        Advice::Discard | Advice::Free => {
            let mut is_done = false;
            change(thread, move |space| {
                // Not again: what the program has put there since is to stay.
                if is_done {
                    return Ok(0);
                }
                let discarded = match advice {
                    Advice::Free => space.free_lazily(start, end),
                    _ => space.discard(start, end),
                };
                is_done = !matches!(discarded, Err(Stop::Awaited(..)));
                discarded.map(|()| 0)
            })
        }
    }
}

/// Populates a range, for the program and, ahead of its calls, for the base.
async fn populate(thread: &mut Thread, start: u64, end: u64, advice: u64) -> Result<u64, Errno> {
    let access = match advice {
        POPULATE_WRITE => Protection::WRITE,
        _ => Protection::READ,
    };
    // Populate here first: if the base took a remote fault without free memory, the program would
    // be killed. All inaccessible addresses fail alike.
    while let Err(error) = populate_here(thread, (start, end), access) {
        match error {
            Errno::EIO => return Err(Errno::EFAULT),
            Errno::EAGAIN => remote::wait_for_change().await,
            error => return Err(error),
        }
    }
    let arguments = [start, end - start, advice, 0, 0, 0];
    thread.remote_syscall(number::MADVISE, arguments).await
}

fn populate_here(
    thread: &Thread,
    (start, end): (u64, u64),
    access: Protection,
) -> Result<(), Errno> {
    let mut space = thread.process.space();
    match space.allows(start, end, access) {
        true => space.populate(start, end, access),
        false => Err(Errno::EINVAL),
    }
}

/// sysinfo(2): memory is the node's; load and processes are the base's.
pub(super) fn sysinfo(thread: Box<Thread>, [to, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = report_memory(&mut thread, to).await;
        finish(thread, result)
    })
}

async fn report_memory(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    /// Offsets in `struct sysinfo`: `totalram` and five more words; `totalhigh` and one more;
    /// `mem_unit`.
    const AT_MEMORY: u64 = 32;
    const AT_HIGH: u64 = 88;
    const AT_UNIT: u64 = 104;
    thread
        .remote_syscall(number::SYSINFO, [to, 0, 0, 0, 0, 0])
        .await?;
    let mut space = thread.process.space();
    let words = [total_bytes(), free_bytes(), 0, 0, 0, 0].map(u64::to_le_bytes);
    space.write(to.wrapping_add(AT_MEMORY), words.as_flattened())?;
    space.write(to.wrapping_add(AT_HIGH), &[0; 16])?;
    space.write(to.wrapping_add(AT_UNIT), &1_u32.to_le_bytes())?;
    Ok(0)
}

/// msync(2): mapped files are copies, nothing is written back.
pub(super) fn msync(thread: &mut Thread, [start, size, ..]: [u64; 6]) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let end = start.checked_add(size).ok_or(Errno::ENOMEM)?;
    match size == 0 || thread.process.space().covers(start, end) {
        true => Ok(0),
        false => Err(Errno::ENOMEM),
    }
}

/// mlock(2), munlock(2) and so on: nothing to do, as pages are never swapped out.
pub(super) fn mlock(_: &mut Thread, _: [u64; 6]) -> Result<u64, Errno> {
    Ok(0)
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
