//! Robust futexes: released when their owner exits, so that waiters find out.
//!
//! Source: Documentation/locking/robust-futex-ABI.rst of Linux.

use crate::model::errno::Errno;
use crate::model::futex::{OWNER_DIED, TID_MASK, WAITERS};
use crate::task::futex;
use crate::task::thread::Thread;

/// Maximum number of entries followed: the list is the program's, and may be cyclic.
const ENTRIES_MAX: usize = 2048;
/// Bit of an entry's address that marks a PI futex.
const IS_PI: u64 = 1;
/// Size of the head: first entry, offset of the futex in an entry, and the entry whose lock
/// operation is pending.
const HEAD_SIZE: usize = 24;

/// Releases the futexes in a thread's list, and forgets the list.
pub(super) fn release(thread: &mut Thread) {
    let (head, _) = core::mem::take(&mut thread.robust_list);
    if head != 0 {
        // Stops at an invalid entry.
        let _ = walk(thread, head);
    }
}

fn walk(thread: &Thread, head: u64) -> Result<(), Errno> {
    let mut bytes = [0; HEAD_SIZE];
    thread.process.space().read(head, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
    let (mut entry, offset, pending) = (word(0), word(1), word(2));
    for _ in 0..ENTRIES_MAX {
        let this = entry & !IS_PI;
        if this == head {
            break;
        }
        let mut next = [0; 8];
        let read = thread.process.space().read(this, &mut next);
        if this != pending & !IS_PI {
            release_one(thread, entry, offset)?;
        }
        read?;
        entry = u64::from_le_bytes(next);
    }
    match pending {
        0 => Ok(()),
        pending => release_one(thread, pending, offset),
    }
}

fn release_one(thread: &Thread, entry: u64, offset: u64) -> Result<(), Errno> {
    let address = (entry & !IS_PI).wrapping_add(offset);
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if entry & IS_PI != 0 {
        return hand_off(thread, address);
    }
    let mut word = thread.process.space().word(address)?;
    while word & TID_MASK == thread.id as u32 {
        let new = word & WAITERS | OWNER_DIED;
        let found = thread
            .process
            .space()
            .compare_exchange(address, word, new)?;
        if found == word {
            if word & WAITERS != 0 {
                futex::wake(thread.process.futex_at(address), 1, u32::MAX);
            }
            break;
        }
        word = found;
    }
    Ok(())
}

/// Hands a PI futex to its first waiter, with the owner-died bit.
fn hand_off(thread: &Thread, address: u64) -> Result<(), Errno> {
    let mut result = Ok(());
    futex::hand_off(thread.process.futex_at(address), |next, has_more| {
        let waiters = if has_more { WAITERS } else { 0 };
        let next = next.map_or(0, |next| next as u32 | waiters);
        let stored = store_if_owner(thread, address, OWNER_DIED | next);
        let is_stored = stored == Ok(true);
        result = stored.map(drop);
        is_stored
    });
    result
}

/// Changes a futex word if the thread owns it. Returns whether it does.
fn store_if_owner(thread: &Thread, address: u64, new: u32) -> Result<bool, Errno> {
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    while word & TID_MASK == thread.id as u32 {
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok(true);
        }
        word = found;
    }
    Ok(false)
}
