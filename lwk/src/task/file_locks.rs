//! Advisory locks of servers' files. This kernel has them, as Linux has those of most file systems: who
//! waits for one waits here, and a server need not know when a process ends.

use alloc::collections::BTreeMap;

use crate::hw::memory::room::has_room;
use crate::model::errno::Errno;
use crate::model::file_locks::{FileLock, FileLocks, Owner};
use crate::model::futex::Key;
use crate::task::futex;

/// Kernel memory needed for a lock.
const LOCK_BYTES: u64 = 4096;
/// First word of the keys of those who wait for a lock. It is no process, so no futex has it.
const WAITING: u64 = u64::MAX >> 1;

/// A server's file: which server's, and its number there.
pub(crate) type FileId = (usize, u64);

/// The two kinds of locks of a file, which do not know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockSpace {
    /// Of ranges: fcntl(2).
    Ranges,
    /// Of the whole file: flock(2).
    Whole,
}

/// All locks. A file is in it as long as it has any.
static ALL: spin::Mutex<BTreeMap<(FileId, LockSpace), FileLocks>> =
    spin::Mutex::new(BTreeMap::new());

/// Returns the key of those who wait for a lock of a file. Another file may have the same: they look
/// again when they are woken.
pub(crate) fn key((server, inode): FileId) -> Key {
    (WAITING, (server as u64).rotate_left(32) ^ inode)
}

/// Returns a lock that keeps another from being set.
pub(crate) fn conflict(place: (FileId, LockSpace), wanted: &FileLock) -> Option<FileLock> {
    ALL.lock().get(&place)?.conflict(wanted)
}

/// Sets a lock, unless another conflicts with it. Returns whether it is set.
///
/// # Errors
/// [`Errno::ENOLCK`] without memory for it.
pub(crate) fn set(place: (FileId, LockSpace), wanted: FileLock) -> Result<bool, Errno> {
    has_room(LOCK_BYTES).map_err(|_| Errno::ENOLCK)?;
    let mut all = ALL.lock();
    let locks = all.entry(place).or_default();
    if locks.conflict(&wanted).is_some() {
        return Ok(false);
    }
    locks.set(wanted);
    drop(all);
    // A shared lock in place of an exclusive one is a chance for others.
    futex::wake_to_repeat(key(place.0));
    Ok(true)
}

/// Removes what an owner has of a range.
pub(crate) fn unset(place: (FileId, LockSpace), owner: Owner, (start, last): (u64, u64)) {
    let mut all = ALL.lock();
    let Some(locks) = all.get_mut(&place) else {
        return;
    };
    let is_any = locks.unset(owner, start, last);
    if locks.is_empty() {
        all.remove(&place);
    }
    drop(all);
    if is_any {
        futex::wake_to_repeat(key(place.0));
    }
}

/// Removes all that an owner has of a file.
pub(crate) fn release(file: FileId, owner: Owner) {
    for space in [LockSpace::Ranges, LockSpace::Whole] {
        unset((file, space), owner, (0, u64::MAX));
    }
}
