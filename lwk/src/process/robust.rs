//! Futexes that a thread holds at its end: whoever waits for one is told that the holder is no more.
//!
//! Source: Documentation/locking/robust-futex-ABI.rst of Linux.

use super::errno::Errno;
use super::{HOLDER, OWNER_DIED, Thread, WAITERS, futex};

/// Most that are looked at: the list is the program's, and may have no end.
const ENTRIES_MAX: usize = 2048;
/// Set in the address of an entry whose holders inherit priorities.
const INHERITS: u64 = 1;
/// Bytes of the head: the first entry, where in an entry's structure the futex lies, and one entry that
/// is being put into the list or taken out of it.
const HEAD_SIZE: usize = 24;

/// Gives up the futexes in a thread's list, which it has no more then.
pub(super) fn give_up(thread: &mut Thread) {
    let (head, _) = core::mem::take(&mut thread.robust);
    if head != 0 {
        // A list that cannot be followed ends there.
        let _ = walk(thread, head);
    }
}

fn walk(thread: &Thread, head: u64) -> Result<(), Errno> {
    let mut bytes = [0; HEAD_SIZE];
    thread.process.space().read(head, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
    let (mut entry, offset, pending) = (word(0), word(1), word(2));
    for _ in 0..ENTRIES_MAX {
        let this = entry & !INHERITS;
        if this == head {
            break;
        }
        let mut next = [0; 8];
        let read = thread.process.space().read(this, &mut next);
        if this != pending & !INHERITS {
            give_up_one(thread, entry, offset)?;
        }
        read?;
        entry = u64::from_le_bytes(next);
    }
    match pending {
        0 => Ok(()),
        pending => give_up_one(thread, pending, offset),
    }
}

fn give_up_one(thread: &Thread, entry: u64, offset: u64) -> Result<(), Errno> {
    let address = (entry & !INHERITS).wrapping_add(offset);
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    if entry & INHERITS != 0 {
        return hand_on(thread, address);
    }
    let mut word = thread.process.space().word(address)?;
    while word & HOLDER == thread.id as u32 {
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

/// Hands a lock to the first who waits for it, who is told that its holder has ended.
fn hand_on(thread: &Thread, address: u64) -> Result<(), Errno> {
    let mut result = Ok(());
    futex::hand_over(thread.process.futex_at(address), |next, more| {
        let waiters = if more { WAITERS } else { 0 };
        let next = next.map_or(0, |next| next as u32 | waiters);
        let given = replace(thread, address, OWNER_DIED | next);
        let is_given = given == Ok(true);
        result = given.map(drop);
        is_given
    });
    result
}

/// Writes a lock that the thread holds; whether it does.
fn replace(thread: &Thread, address: u64, new: u32) -> Result<bool, Errno> {
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    while word & HOLDER == thread.id as u32 {
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok(true);
        }
        word = found;
    }
    Ok(false)
}
