//! futex(2), complete.
//!
//! The word of a priority-inheritance futex contains its owner's thread id. It is handed to the
//! waiter of the highest priority; while others wait, the owner runs at the highest priority among
//! them.

use alloc::boxed::Box;

use insula_bare::user::USER_END;

use crate::hw::memory::room::has_room_to_free;
use crate::model::errno::Errno;
use crate::model::futex::{Key, TID_MASK, WAITERS, Waiter};
use crate::model::number::FUTEX;
use crate::syscall::deadline::{deadline, deadline_after, time_ns};
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::futex;
use crate::task::thread::Thread;

const WAIT: u64 = 0;
const WAKE: u64 = 1;
const REQUEUE: u64 = 3;
const CMP_REQUEUE: u64 = 4;
const WAKE_OP: u64 = 5;
const LOCK_PI: u64 = 6;
const UNLOCK_PI: u64 = 7;
const TRYLOCK_PI: u64 = 8;
const WAIT_BITSET: u64 = 9;
const WAKE_BITSET: u64 = 10;
const WAIT_REQUEUE_PI: u64 = 11;
const CMP_REQUEUE_PI: u64 = 12;
const LOCK_PI2: u64 = 13;
const PRIVATE: u64 = 0x80;
const CLOCK_REALTIME: u64 = 0x100;
/// Kernel memory needed for a waiter, beside the thread.
const WAIT_BYTES: u64 = 4096;
/// Mask of the operation without its flags.
const COMMAND: u64 = 0xffff_ffff & !(PRIVATE | CLOCK_REALTIME);

/// A futex word: its key in the kernel, and its address in the program.
#[derive(Clone, Copy)]
struct FutexWord {
    key: Key,
    address: u64,
}

impl FutexWord {
    /// Only a futex that is not private can be in memory shared by processes.
    fn new(thread: &Thread, operation: u64, address: u64) -> Self {
        let key = match operation & PRIVATE {
            0 => thread.process.futex_at(address),
            _ => thread.process.private_futex_at(address),
        };
        Self { key, address }
    }
}

/// futex(2).
pub(super) fn futex(thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [address, operation, value, timeout, second, third] = a;
    if !is_known(operation) {
        return finish(thread, Err(Errno::ENOSYS));
    }
    if let Err(error) = check_address(&thread, operation, address) {
        return finish(thread, Err(error));
    }
    if is_base_futex(&thread, operation, address) {
        return delegate(thread, FUTEX, a);
    }
    let futex = FutexWord::new(&thread, operation, address);
    let other = || FutexWord::new(&thread, operation, second);
    let clamp_count = |count: u64| u32::try_from(count as i32).unwrap_or(0);
    let counts = (clamp_count(value), clamp_count(timeout));
    let third = third as u32;
    let result = match operation & COMMAND {
        WAIT | WAIT_REQUEUE_PI => {
            return wait(thread, operation, (futex, value), timeout, u32::MAX);
        }
        WAIT_BITSET => return wait(thread, operation, (futex, value), timeout, third),
        LOCK_PI | LOCK_PI2 => return lock(thread, operation, futex, timeout),
        TRYLOCK_PI => try_lock(&thread, address).and_then(|got| match got {
            true => Ok(0),
            false => Err(Errno::EAGAIN),
        }),
        UNLOCK_PI => unlock(&thread, futex),
        WAKE => Ok(futex::wake(futex.key, counts.0, u32::MAX)),
        WAKE_BITSET if third == 0 => Err(Errno::EINVAL),
        WAKE_BITSET => Ok(futex::wake(futex.key, counts.0, third)),
        WAKE_OP => wake_by_operation(&thread, (futex, other()), counts, third),
        REQUEUE => {
            let done = futex::requeue(futex.key, other().key, counts, || true);
            Ok(done.map_or(0, |(woken, _)| woken))
        }
        CMP_REQUEUE => compare_and_requeue(&thread, (futex, other()), counts, third),
        CMP_REQUEUE_PI => requeue_pi(&thread, (futex, other()), counts, third),
        _ => Err(Errno::ENOSYS),
    };
    finish(thread, result)
}

/// Whether a futex is in memory that the base's processes may share: then the base has its waiters.
fn is_base_futex(thread: &Thread, operation: u64, address: u64) -> bool {
    operation & PRIVATE == 0 && thread.process.space().is_base_shared(address)
}

/// Whether the operation exists, and allows the given clock.
fn is_known(operation: u64) -> bool {
    match operation & COMMAND {
        WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2 => true,
        WAIT | WAKE | REQUEUE..=TRYLOCK_PI | WAKE_BITSET | CMP_REQUEUE_PI => {
            operation & CLOCK_REALTIME == 0
        }
        _ => false,
    }
}

/// Checks the address: the word of a shared futex must be mapped, also for operations that do not
/// read it; that of a private futex must be a user address.
fn check_address(thread: &Thread, operation: u64, address: u64) -> Result<(), Errno> {
    if !address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let is_there = match operation & PRIVATE {
        0 => thread
            .process
            .space()
            .covers(address, address.saturating_add(4)),
        _ => address < USER_END,
    };
    is_there.then_some(()).ok_or(Errno::EFAULT)
}

fn compare_and_requeue(
    thread: &Thread,
    (from, to): (FutexWord, FutexWord),
    counts: (u32, u32),
    expected: u32,
) -> Result<u64, Errno> {
    let mut found = Ok(0);
    let done = futex::requeue(from.key, to.key, counts, || {
        found = thread.process.space().word(from.address);
        found == Ok(expected)
    });
    found?;
    done.map(|(woken, moved)| woken + moved)
        .ok_or(Errno::EAGAIN)
}

fn wait(
    mut thread: Box<Thread>,
    operation: u64,
    (futex, value): (FutexWord, u64),
    timeout: u64,
    bitset: u32,
) -> Flow {
    if bitset == 0 {
        return finish(thread, Err(Errno::EINVAL));
    }
    let should_wait = |thread: &mut Thread| {
        let found = thread.process.space().word(futex.address)?;
        (found == value as u32).then_some(None).ok_or(Errno::EAGAIN)
    };
    match deadline_of(&mut thread, operation, timeout) {
        Ok(deadline_ns) => wait_if(thread, futex.key, (bitset, deadline_ns), should_wait),
        Err(error) => finish(thread, Err(error)),
    }
}

/// Blocks a thread if `should_wait` agrees; it returns the lock's owner, if the futex is a lock.
/// Otherwise the call fails with its error; `EINTR` means that the thread has to check for signals.
fn wait_if(
    mut thread: Box<Thread>,
    key: Key,
    (bitset, deadline_ns): (u32, Option<u64>),
    should_wait: impl FnOnce(&mut Thread) -> Result<Option<u64>, Errno>,
) -> Flow {
    // Without memory for a waiter the program may retry.
    if has_room_to_free(WAIT_BYTES).is_err() {
        return finish(thread, Err(Errno::EAGAIN));
    }
    // Once queued, the thread may be woken and run on another core at once.
    thread.extended.save();
    thread.interruptible_call = Some(FUTEX);
    let waiter = Waiter::new(thread, bitset, deadline_ns);
    let mut found = Ok(None);
    let should_wait = |thread: &mut Thread| {
        found = should_wait(thread);
        if found.is_ok() && (thread.handle.is_signal_pending() || thread.must_not_block()) {
            found = Err(Errno::EINTR);
        }
        found.ok()
    };
    match futex::wait_for_owner(key, waiter, should_wait) {
        None => Flow::Blocked,
        Some(thread) => finish(thread, found.map(|_| 0)),
    }
}

/// Acquires a PI futex if it is free; otherwise sets the waiters bit and returns the owner.
fn acquire_or_mark(
    thread: &Thread,
    address: u64,
    marks_waiters: bool,
) -> Result<Option<u64>, Errno> {
    let own = thread.id as u32;
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    loop {
        let (is_free, is_own) = (word & TID_MASK == 0, word & TID_MASK == own);
        if is_own {
            return Err(Errno::EDEADLK);
        }
        if !is_free && !marks_waiters {
            return Ok(Some(u64::from(word & TID_MASK)));
        }
        let new = if is_free {
            own | (word & !TID_MASK)
        } else {
            word | WAITERS
        };
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok((!is_free).then_some(u64::from(word & TID_MASK)));
        }
        word = found;
    }
}

fn try_lock(thread: &Thread, address: u64) -> Result<bool, Errno> {
    let owner = acquire_or_mark(thread, address, false)?;
    Ok(owner.is_none())
}

fn lock(mut thread: Box<Thread>, operation: u64, futex: FutexWord, timeout: u64) -> Flow {
    // FUTEX_LOCK_PI always uses the realtime clock.
    let clock = match operation & COMMAND {
        LOCK_PI => operation | CLOCK_REALTIME,
        _ => operation,
    };
    let deadline_ns = match deadline_of(&mut thread, clock, timeout) {
        Ok(deadline_ns) => deadline_ns,
        Err(error) => return finish(thread, Err(error)),
    };
    let mut taken = false;
    let should_wait = |thread: &mut Thread| {
        let owner = acquire_or_mark(thread, futex.address, true)?;
        taken = owner.is_none();
        // Acquired: there is nothing to wait for. The caller turns this error into success.
        owner.map(Some).ok_or(Errno::EAGAIN)
    };
    match wait_if(thread, futex.key, (u32::MAX, deadline_ns), should_wait) {
        Flow::Continue(thread) if taken => finish(thread, Ok(0)),
        flow => flow,
    }
}

/// Hands a lock to its first waiter.
fn unlock(thread: &Thread, futex: FutexWord) -> Result<u64, Errno> {
    let own = thread.id as u32;
    let mut result = Ok(0);
    futex::hand_off(futex.key, |next, more| {
        let assigned = assign(thread, futex.address, own, next.map(|next| (next, more)));
        result = assigned.map(|()| 0);
        result.is_ok()
    });
    result
}

/// Writes the next owner to a lock that `own` holds.
fn assign(thread: &Thread, address: u64, own: u32, next: Option<(u64, bool)>) -> Result<(), Errno> {
    let new = next.map_or(0, |(next, more)| {
        next as u32 | if more { WAITERS } else { 0 }
    });
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    loop {
        if word & TID_MASK != own {
            return Err(Errno::EPERM);
        }
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok(());
        }
        word = found;
    }
}

/// Moves waiters to a lock. The first acquires it if it is free.
fn requeue_pi(
    thread: &Thread,
    (from, to): (FutexWord, FutexWord),
    (wake, most): (u32, u32),
    expected: u32,
) -> Result<u64, Errno> {
    if wake != 1 {
        return Err(Errno::EINVAL);
    }
    let is_expected = || match thread.process.space().word(from.address) {
        Ok(word) if word == expected => Ok(()),
        Ok(_) => Err(Errno::EAGAIN),
        Err(error) => Err(error),
    };
    is_expected()?;
    let mut woken = 0;
    futex::hand_off(from.key, |next, _| {
        let free =
            next.is_some_and(|next| assign(thread, to.address, 0, Some((next, true))).is_ok());
        woken = u64::from(free);
        free
    });
    let moved = futex::requeue(from.key, to.key, (0, most), || is_expected().is_ok());
    let (_, moved) = moved.ok_or(Errno::EAGAIN)?;
    if moved > 0 {
        set_waiters(thread, to.address)?;
        let word = thread.process.space().word(to.address)?;
        futex::set_owner(to.key, u64::from(word & TID_MASK));
    }
    Ok(woken + moved)
}

fn set_waiters(thread: &Thread, address: u64) -> Result<(), Errno> {
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    while word & WAITERS == 0 {
        let found = space.compare_exchange(address, word, word | WAITERS)?;
        if found == word {
            break;
        }
        word = found;
    }
    Ok(())
}

/// Changes the second word, then wakes waiters of the first and, depending on the old value, of the
/// second.
fn wake_by_operation(
    thread: &Thread,
    (first, second): (FutexWord, FutexWord),
    counts: (u32, u32),
    code: u32,
) -> Result<u64, Errno> {
    if !second.address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let is_second_woken = {
        let mut space = thread.process.space();
        let mut word = space.word(second.address)?;
        loop {
            let (new, is_second_woken) = apply_operation(word, code).ok_or(Errno::ENOSYS)?;
            let found = space.compare_exchange(second.address, word, new)?;
            if found == word {
                break is_second_woken;
            }
            word = found;
        }
    };
    let woken = futex::wake(first.key, counts.0, u32::MAX);
    let more = if is_second_woken {
        futex::wake(second.key, counts.1, u32::MAX)
    } else {
        0
    };
    Ok(woken + more)
}

/// Computes FUTEX_WAKE_OP: the new word, and whether the old one meets the comparison (futex(2)).
fn apply_operation(word: u32, code: u32) -> Option<(u32, bool)> {
    const SHIFTED: u32 = 8;
    let signed = |bits: u32| ((bits << 20) as i32) >> 20;
    let (operation, comparison) = (code >> 28, code >> 24 & 0xf);
    let (argument, compared) = (signed(code >> 12 & 0xfff), signed(code & 0xfff));
    let argument = match operation & SHIFTED {
        0 => argument as u32,
        _ => 1_u32.wrapping_shl(argument as u32),
    };
    let new = match operation & !SHIFTED {
        0 => argument,
        1 => word.wrapping_add(argument),
        2 => word | argument,
        3 => word & !argument,
        4 => word ^ argument,
        _ => return None,
    };
    let old = word as i32;
    let holds = match comparison {
        0 => old == compared,
        1 => old != compared,
        2 => old < compared,
        3 => old <= compared,
        4 => old > compared,
        5 => old >= compared,
        _ => return None,
    };
    Some((new, holds))
}

/// Converts a futex timeout, which for most operations is an absolute time of a clock of the base.
fn deadline_of(thread: &mut Thread, operation: u64, timeout: u64) -> Result<Option<u64>, Errno> {
    if operation & COMMAND == WAIT {
        return deadline(thread, timeout);
    }
    let Some(time_ns) = time_ns(thread, timeout)? else {
        return Ok(None);
    };
    let clock = thread.process.pages().area().clock();
    let base_now_ns = match operation & CLOCK_REALTIME {
        0 => clock.monotonic_ns(clock.read_at()),
        _ => clock.realtime_ns(clock.read_at()),
    };
    Ok(Some(deadline_after(time_ns.saturating_sub(base_now_ns))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(operation: u32, comparison: u32, argument: u32, compared: u32) -> u32 {
        operation << 28 | comparison << 24 | (argument & 0xfff) << 12 | compared & 0xfff
    }

    #[test]
    fn words_change_as_futex_wake_op_says() {
        let minus_one = u32::MAX;
        assert_eq!(apply_operation(5, code(0, 0, 7, 5)), Some((7, true)));
        assert_eq!(
            apply_operation(5, code(1, 1, minus_one, 5)),
            Some((4, false))
        );
        assert_eq!(
            apply_operation(5, code(2, 4, 2, minus_one)),
            Some((7, true))
        );
        assert_eq!(apply_operation(7, code(3, 2, 2, 0)), Some((5, false)));
        assert_eq!(apply_operation(7, code(4 | 8, 5, 3, 7)), Some((15, true)));
        assert_eq!(
            apply_operation(minus_one, code(0, 3, 0, minus_one)),
            Some((0, true))
        );
        assert_eq!(apply_operation(0, code(5, 0, 0, 0)), None);
        assert_eq!(apply_operation(0, code(0, 6, 0, 0)), None);
    }
}
