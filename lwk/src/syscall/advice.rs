//! madvise(2).

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::number::MADVISE;
use crate::model::vma::{PAGE, Protection, Vma, VmaFlags};
use crate::syscall::change::{change, whole_pages};
use crate::syscall::delegate::finish;
use crate::task::address_space::AddressSpace;
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
    /// For base mappings only; this error for memory of the node.
    OfBase(Errno),
}

impl Advice {
    /// Decodes an advice (include/uapi/asm-generic/mman-common.h of Linux).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it is not supported.
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
            // REMOVE, which punches a hole in shared memory; COLLAPSE.
            9 | 25 => Self::OfBase(Errno::EINVAL),
            // HWPOISON, SOFT_OFFLINE: they inject errors.
            100 | 101 => Self::OfBase(Errno::EPERM),
            // GUARD_INSTALL and GUARD_REMOVE, among others.
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// madvise(2).
pub(super) fn madvise(thread: Box<Thread>, [start, size, number, ..]: [u64; 6]) -> Flow {
    let number = u64::from(number as u32);
    let arguments = Advice::of(number).and_then(|advice| Ok((advice, advised_end(start, size)?)));
    let (advice, end) = match arguments {
        Ok((_, end)) if start == end => return finish(thread, Ok(0)),
        Ok(arguments) => arguments,
        Err(error) => return finish(thread, Err(error)),
    };
    let range = (start, end);
    let first = thread.process.space().vmas().first_within(start, end);
    let is_own = |vma: &Vma| !vma.flags.intersects(VmaFlags::BASE | VmaFlags::LOCKED);
    // Usually it is all one VMA of the node's memory, not locked.
    match first.filter(|vma| is_own(vma) && (vma.start, vma.end) == range) {
        Some(_) if advice != Advice::Populate => change(thread, advise_own(range, advice)),
        _ => Flow::handler(thread, move |mut thread| async move {
            let result = advise(&mut thread, range, (advice, number)).await;
            finish(thread, result)
        }),
    }
}

/// Returns the end of a range of pages.
fn advised_end(start: u64, size: u64) -> Result<u64, Errno> {
    if !start.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    if size == 0 {
        return Ok(start);
    }
    // As of madvise(2), also if there are no such addresses.
    let size = whole_pages(size).map_err(|_| Errno::EINVAL)?;
    start.checked_add(size).ok_or(Errno::EINVAL)
}

/// Gives an advice on a range, VMA by VMA, up to the first that fails. As on Linux, what is behind a
/// gap is advised as well, unless it is to be populated, and then the call fails.
async fn advise(
    thread: &mut Thread,
    (start, end): (u64, u64),
    (advice, number): (Advice, u64),
) -> Result<u64, Errno> {
    let (mut next, mut is_any_missing) = (start, false);
    while next < end {
        let part = thread.process.space().vmas().first_within(next, end);
        is_any_missing |= part.is_none_or(|part| next < part.start);
        let Some(part) = part.filter(|_| !is_any_missing || advice != Advice::Populate) else {
            break;
        };
        advise_part(thread, &part, (advice, number)).await?;
        next = part.end;
    }
    match is_any_missing {
        true => Err(Errno::ENOMEM),
        false => Ok(0),
    }
}

/// Gives an advice on a part of a VMA.
async fn advise_part(
    thread: &mut Thread,
    part: &Vma,
    (advice, number): (Advice, u64),
) -> Result<u64, Errno> {
    /// `MADV_DONTNEED_LOCKED`.
    const DISCARD_LOCKED: u64 = 24;
    let range = (part.start, part.end);
    let discards = matches!(advice, Advice::Discard | Advice::Free) && number != DISCARD_LOCKED;
    if discards && part.flags.contains(VmaFlags::LOCKED) {
        return Err(Errno::EINVAL);
    }
    if advice == Advice::Populate {
        return populate(thread, range, number).await;
    }
    if part.flags.contains(VmaFlags::BASE) {
        thread
            .for_each_base_mapping(MADVISE, range, [number, 0, 0, 0])
            .await?;
        if !matches!(advice, Advice::SetFlags(..)) {
            return Ok(0);
        }
    }
    thread.change_space(advise_own(range, advice)).await
}

/// Returns the change by which an advice on memory of the node, or on VMAs, takes effect.
fn advise_own(
    (start, end): (u64, u64),
    advice: Advice,
) -> impl FnMut(&mut AddressSpace) -> Result<u64, Stop> + Send + 'static {
    let mut is_done = false;
    move |space| {
        let advised = match advice {
            Advice::Hint | Advice::Populate => Ok(()),
            Advice::OfBase(error) => Err(error.into()),
            Advice::SetFlags(set, clear) => Ok(space.set_flags((start, end), set, clear)?),
            // Not again: what the program has put there since is to stay.
            _ if is_done => Ok(()),
            Advice::Free => space.free_lazily(start, end),
            Advice::Discard => space.discard(start, end),
        };
        is_done = !matches!(advised, Err(Stop::Awaited(..)));
        advised.map(|()| 0)
    }
}

/// Populates a range, for the program and, ahead of its calls, for the base.
pub(super) async fn populate(
    thread: &mut Thread,
    (start, end): (u64, u64),
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
    let populated = thread.remote_syscall(MADVISE, arguments).await?;
    // Hardly ever is a page gone again.
    let _ = thread.populate_base((start, end), access).await;
    Ok(populated)
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
        for unknown in [5, 99, 102, 103, u64::MAX] {
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
