//! madvise(2).

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::MADVISE;
use crate::model::vma::{PAGE, Protection, VmaFlags};
use crate::syscall::base_mapping;
use crate::syscall::change::{change, whole_pages};
use crate::syscall::delegate::finish;
use crate::task::address_space::stop::Stop;
use crate::task::flow::Flow;
use crate::task::remote;
use crate::task::thread::Thread;

/// `MADV_POPULATE_READ`, which is also delegated to the base.
pub(super) const POPULATE_READ: u64 = 22;
/// `MADV_POPULATE_WRITE`; as well.
pub(super) const POPULATE_WRITE: u64 = 23;

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

/// madvise(2).
pub(super) fn madvise(thread: Box<Thread>, [start, size, number, ..]: [u64; 6]) -> Flow {
    let advice = Advice::of(u64::from(number as u32));
    let end = match advised_end(&thread, start, size) {
        Ok(end) => end,
        Err(error) => return finish(thread, Err(error)),
    };
    match advice {
        _ if base_mapping::has_base_mappings(&thread, start, end) => {
            advise_base(thread, (start, end), advice, number)
        }
        Ok(_) if start == end => finish(thread, Ok(0)),
        Ok(advice) => advise(thread, (start, end), advice, number),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Returns the end of a range of pages that is mapped without gaps.
fn advised_end(thread: &Thread, start: u64, size: u64) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if size == 0 {
        return Ok(start);
    }
    let end = start.checked_add(whole_pages(size)?).ok_or(Errno::EINVAL)?;
    match thread.process.space().covers(start, end) {
        true => Ok(end),
        false => Err(Errno::ENOMEM),
    }
}

/// Gives an advice on a range with base mappings: to the base for these, then for all else.
fn advise_base(
    thread: Box<Thread>,
    (start, end): (u64, u64),
    advice: Result<Advice, Errno>,
    number: u64,
) -> Flow {
    if advice == Ok(Advice::Populate) {
        return advise(thread, (start, end), Advice::Populate, number);
    }
    Flow::handler(thread, move |mut thread| async move {
        let range = (start, end);
        let told = thread.for_each_base_mapping(MADVISE, range, [number, 0, 0, 0]);
        if let Err(error) = told.await {
            return finish(thread, Err(error));
        }
        match advice {
            Ok(advice) => advise(thread, range, advice, number),
            // The base knows advice that concerns only its own memory.
            Err(_) if thread.process.space().is_all_base(start, end) => finish(thread, Ok(0)),
            Err(error) => finish(thread, Err(error)),
        }
    })
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
pub(super) async fn populate(
    thread: &mut Thread,
    start: u64,
    end: u64,
    advice: u64,
) -> Result<u64, Errno> {
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
    thread.remote_syscall(MADVISE, arguments).await
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
