//! Futexes that a thread holds at its end: whoever waits for one is told that the holder is no more.
//!
//! Source: Documentation/locking/robust-futex-ABI.rst of Linux.

use super::errno::Errno;
use super::{HOLDER, OWNER_DIED, Thread, WAITERS, futex};

/// Most that are looked at: the list is the program's, and may have no end.
const ENTRIES_MAX: usize = 2048;
/// Bytes of the head: the first entry, where in an entry's structure the futex lies, and one entry that
/// is being put into the list or taken out of it.
const HEAD_SIZE: usize = 24;

/// Gives up the futexes in a thread's list.
pub(super) fn give_up(thread: &Thread) {
    let (head, _) = thread.robust;
    if head != 0 {
        // A list that cannot be followed ends there.
        let _ = walk(thread, head);
    }
}

fn walk(thread: &Thread, head: u64) -> Result<(), Errno> {
    let mut bytes = [0; HEAD_SIZE];
    thread.process.space().read(head, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[8 * at + index]));
    let (mut entry, offset, pending) = (word(0), word(1), word(2) & !1);
    for _ in 0..ENTRIES_MAX {
        // The lowest bit tells of one whose holders inherit priorities.
        let this = entry & !1;
        if this == head {
            break;
        }
        let mut next = [0; 8];
        let read = thread.process.space().read(this, &mut next);
        if this != pending {
            give_up_one(thread, this.wrapping_add(offset))?;
        }
        read?;
        entry = u64::from_le_bytes(next);
    }
    match pending {
        0 => Ok(()),
        pending => give_up_one(thread, pending.wrapping_add(offset)),
    }
}

fn give_up_one(thread: &Thread, address: u64) -> Result<(), Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
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
