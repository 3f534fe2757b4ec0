//! Calls that lock memory. The node's own pages are never paged out: for them a lock means that they
//! are present, count against the limit, and are not discarded. Pages of base mappings are locked by
//! the base.

use alloc::boxed::Box;

use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::number;
use crate::model::vma::{Lock, PAGE, Protection, Vma, VmaFlags};
use crate::syscall::advice::{POPULATE_READ, POPULATE_WRITE, populate};
use crate::syscall::delegate::finish;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// `MLOCK_ONFAULT`.
const ON_FAULT: u64 = 1;
/// `MCL_CURRENT`, `MCL_FUTURE` and `MCL_ONFAULT`.
const CURRENT: u64 = 1;
const FUTURE: u64 = 2;
const ALL_ON_FAULT: u64 = 4;

/// mlock(2).
pub(super) fn mlock(thread: Box<Thread>, [start, size, ..]: [u64; 6]) -> Flow {
    change_locks(thread, (start, size), Some(Lock::Now))
}

/// mlock2(2).
pub(super) fn mlock2(thread: Box<Thread>, [start, size, flags, ..]: [u64; 6]) -> Flow {
    match u64::from(flags as u32) {
        0 => change_locks(thread, (start, size), Some(Lock::Now)),
        ON_FAULT => change_locks(thread, (start, size), Some(Lock::OnFault)),
        _ => finish(thread, Err(Errno::EINVAL)),
    }
}

/// munlock(2).
pub(super) fn munlock(thread: Box<Thread>, [start, size, ..]: [u64; 6]) -> Flow {
    change_locks(thread, (start, size), None)
}

/// mlockall(2).
pub(super) fn mlockall(thread: Box<Thread>, [flags, ..]: [u64; 6]) -> Flow {
    let flags = u64::from(flags as u32);
    if flags & (CURRENT | FUTURE) == 0 || flags & !(CURRENT | FUTURE | ALL_ON_FAULT) != 0 {
        return finish(thread, Err(Errno::EINVAL));
    }
    Flow::handler(thread, move |mut thread| async move {
        let result = lock_all(&mut thread, flags).await;
        finish(thread, result.map(|()| 0))
    })
}

/// munlockall(2).
pub(super) fn munlockall(thread: Box<Thread>, _: [u64; 6]) -> Flow {
    Flow::handler(thread, |mut thread| async move {
        thread.process.space().set_lock_of_new(None);
        let all = thread.process.pages().bounds();
        let result = set_all(&mut thread, all, None).await;
        finish(thread, result.map(|()| 0))
    })
}

/// Changes the locks of the pages that contain a range of bytes.
fn change_locks(thread: Box<Thread>, (start, size): (u64, u64), lock: Option<Lock>) -> Flow {
    let skip = start % PAGE;
    // As on Linux a size that is too large is one of a few bytes.
    let size = size.wrapping_add(skip).wrapping_add(PAGE - 1) & !(PAGE - 1);
    Flow::handler(thread, move |mut thread| async move {
        let result = change_range(&mut thread, (start - skip, size), lock).await;
        finish(thread, result.map(|()| 0))
    })
}

async fn change_range(
    thread: &mut Thread,
    (start, size): (u64, u64),
    lock: Option<Lock>,
) -> Result<(), Errno> {
    if lock.is_some() {
        let already = thread.process.space().locked_bytes_within(start, size);
        is_permitted(thread).await?;
        has_room_for(thread, size - already).await?;
    }
    let end = start.checked_add(size).ok_or(Errno::EINVAL)?;
    if start == end {
        return Ok(());
    }
    let covered_end = thread.process.space().vmas().covered_end(start, end);
    set(thread, (start, covered_end), lock).await?;
    if covered_end < end {
        return Err(Errno::ENOMEM);
    }
    match lock {
        Some(Lock::Now) => populate_all(thread, (start, end)).await,
        _ => Ok(()),
    }
}

async fn lock_all(thread: &mut Thread, flags: u64) -> Result<(), Errno> {
    is_permitted(thread).await?;
    let lock = match flags & ALL_ON_FAULT {
        0 => Lock::Now,
        _ => Lock::OnFault,
    };
    if flags & CURRENT != 0 {
        let bytes = thread.process.space().vmas().bytes();
        may_lock(thread, bytes).await?;
    }
    let lock_of_new = (flags & FUTURE != 0).then_some(lock);
    thread.process.space().set_lock_of_new(lock_of_new);
    if flags & CURRENT == 0 {
        return Ok(());
    }
    let all = thread.process.pages().bounds();
    set_all(thread, all, Some(lock)).await?;
    if lock == Lock::Now {
        let mut next = all.0;
        while let Some(vma) = first_within(thread, (next, all.1)) {
            // As on Linux, what cannot be populated is locked nevertheless.
            let _ = populate_all(thread, (vma.start, vma.end)).await;
            next = vma.end;
        }
    }
    Ok(())
}

fn first_within(thread: &Thread, (start, end): (u64, u64)) -> Option<Vma> {
    thread.process.space().vmas().first_within(start, end)
}

/// Sets the locks of all that is mapped in a range, as far as the base can.
async fn set_all(
    thread: &mut Thread,
    (start, end): (u64, u64),
    lock: Option<Lock>,
) -> Result<(), Errno> {
    let mut next = start;
    while let Some(vma) = first_within(thread, (next, end)) {
        next = vma.end;
        let _ = set_of_base(thread, (vma.start, vma.end), lock).await;
    }
    thread
        .change_space(move |space| Ok(space.set_locked((start, end), lock)?))
        .await
}

/// Sets the locks of a range without gaps.
async fn set(
    thread: &mut Thread,
    (start, end): (u64, u64),
    lock: Option<Lock>,
) -> Result<(), Errno> {
    set_of_base(thread, (start, end), lock).await?;
    thread
        .change_space(move |space| Ok(space.set_locked((start, end), lock)?))
        .await
}

async fn set_of_base(
    thread: &mut Thread,
    range: (u64, u64),
    lock: Option<Lock>,
) -> Result<(), Errno> {
    let (call, flags) = match lock {
        Some(Lock::Now) => (number::MLOCK2, 0),
        Some(Lock::OnFault) => (number::MLOCK2, ON_FAULT),
        None => (number::MUNLOCK, 0),
    };
    thread
        .for_each_base_mapping(call, range, [flags, 0, 0, 0])
        .await
}

/// Populates a range without gaps. What would have to be copied when it is written is copied.
async fn populate_all(thread: &mut Thread, (start, end): (u64, u64)) -> Result<(), Errno> {
    let mut next = start;
    while let Some(vma) = first_within(thread, (next, end)) {
        next = vma.end;
        let is_shared = vma.object.is_some() || vma.flags.contains(VmaFlags::SHARED);
        let advice = match vma.protection.contains(Protection::WRITE) && !is_shared {
            true => POPULATE_WRITE,
            false => POPULATE_READ,
        };
        let mut populated = populate(thread, (vma.start, vma.end), advice).await;
        let is_refused = matches!(populated, Err(Errno::EINVAL | Errno::EFAULT));
        if is_refused && advice == POPULATE_READ && vma.flags.contains(VmaFlags::BASE) {
            populated = populate_device(thread, vma).await.map(|()| 0);
        }
        // mlock(2) of POSIX has errors of its own.
        populated.map_err(|error| match error {
            Errno::ENOMEM => Errno::EAGAIN,
            _ => Errno::ENOMEM,
        })?;
    }
    Ok(())
}

/// Populates a mapping of a device, if there is memory for the page table. The base refuses to (with
/// EINVAL or EFAULT, by its version): its own page table has all pages from the start.
async fn populate_device(thread: &mut Thread, vma: Vma) -> Result<(), Errno> {
    /// Of what a mapping has, its entries in the page table take this part, and as much stays free.
    const PAGE_PER_ENTRY: u64 = PAGE / 8;
    has_room(2 * (vma.end - vma.start) / PAGE_PER_ENTRY).map_err(|_| Errno::ENOMEM)?;
    let range = (vma.start, vma.end);
    thread.populate_base(range, Protection::READ).await
}

/// Checks that a new mapping of a size may be locked.
///
/// # Errors
/// [`Errno::EPERM`] if the program `asks` for that but may lock nothing; [`Errno::EAGAIN`] if it
/// would lock too much.
pub(super) async fn can_lock_new(thread: &mut Thread, size: u64, asks: bool) -> Result<(), Errno> {
    if asks {
        is_permitted(thread).await?;
    }
    has_room_for(thread, size)
        .await
        .map_err(|error| match error {
            Errno::ENOMEM => Errno::EAGAIN,
            error => error,
        })
}

/// Locks what has just been mapped, as far as possible.
pub(super) async fn lock_new(thread: &mut Thread, range: (u64, u64), lock: Lock) {
    let is_set = set(thread, range, Some(lock)).await.is_ok();
    if is_set && lock == Lock::Now {
        let _ = populate_all(thread, range).await;
    }
}

/// Checks that the program may lock memory at all.
async fn is_permitted(thread: &mut Thread) -> Result<(), Errno> {
    match limit(thread).await? == 0 && !is_capable(thread, IPC_LOCK).await? {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// Checks that the program may lock more bytes.
async fn has_room_for(thread: &mut Thread, more: u64) -> Result<(), Errno> {
    let locked = thread.process.space().vmas().locked_bytes();
    may_lock(thread, locked.saturating_add(more)).await
}

/// `CAP_IPC_LOCK`.
const IPC_LOCK: u64 = 14;

/// Checks that the program may have so much locked.
async fn may_lock(thread: &mut Thread, bytes: u64) -> Result<(), Errno> {
    let whole_pages = limit(thread).await? & !(PAGE - 1);
    match bytes > whole_pages && !is_capable(thread, IPC_LOCK).await? {
        true => Err(Errno::ENOMEM),
        false => Ok(()),
    }
}

/// Returns `RLIMIT_MEMLOCK`, in bytes.
async fn limit(thread: &mut Thread) -> Result<u64, Errno> {
    const MEMLOCK: u64 = 8;
    let at = thread.put_scratch(&[0, 0]).ok_or(Errno::ENOMEM)?;
    thread
        .remote_syscall_as_kernel(number::PRLIMIT64, [0, MEMLOCK, 0, at, 0, 0])
        .await?;
    let [soft, ..] = thread.slot.scratch();
    Ok(soft)
}

/// Whether the calling thread has one of the first 32 capabilities.
///
/// # Errors
/// [`Errno::EINTR`] if the proxy has exited.
pub(super) async fn is_capable(thread: &mut Thread, capability: u64) -> Result<bool, Errno> {
    /// `_LINUX_CAPABILITY_VERSION_3`, with the own thread's id behind it.
    const OWN: u64 = 0x2008_0522;
    let at = thread.put_scratch(&[OWN, 0, 0, 0]).ok_or(Errno::ENOMEM)?;
    thread
        .remote_syscall_as_kernel(number::CAPGET, [at, at + 8, 0, 0, 0, 0])
        .await?;
    let [_, effective, ..] = thread.slot.scratch();
    Ok(effective >> capability & 1 != 0)
}
