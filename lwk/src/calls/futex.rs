//! futex(2), in full.
//!
//! The word of a futex whose holder inherits priorities has the holder's id, and is handed from one to
//! the next: to the most urgent who waits. As long as one waits the holder is as urgent.

use alloc::boxed::Box;

use insula_bare::user::USER_END;

use super::{Flow, answer};
use crate::clock;
use crate::memory::has_room_to_free;
use crate::process::errno::Errno;
use crate::process::{self, HOLDER, Key, Thread, WAITERS, Waiter};

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
/// Bytes of the kernel's that one who waits may take, beside the thread.
const WAIT_BYTES: u64 = 4096;
/// All but these flags.
const COMMAND: u64 = 0xffff_ffff & !(PRIVATE | CLOCK_REALTIME);

/// A futex: what threads wait for, and where the program has it.
#[derive(Clone, Copy)]
struct Spot {
    key: Key,
    address: u64,
}

impl Spot {
    /// Only one that is not said to be private can be in memory that processes share.
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
        return answer(thread, Err(Errno::ENOSYS));
    }
    if let Err(error) = is_a_place(&thread, operation, address) {
        return answer(thread, Err(error));
    }
    let spot = Spot::new(&thread, operation, address);
    let other = || Spot::new(&thread, operation, second);
    let many = |count: u64| u32::try_from(count as i32).unwrap_or(0);
    let counts = (many(value), many(timeout));
    let third = third as u32;
    let result = match operation & COMMAND {
        WAIT | WAIT_REQUEUE_PI => {
            return wait(thread, operation, (spot, value), timeout, u32::MAX);
        }
        WAIT_BITSET => return wait(thread, operation, (spot, value), timeout, third),
        LOCK_PI | LOCK_PI2 => return lock(thread, operation, spot, timeout),
        TRYLOCK_PI => try_lock(&thread, address).and_then(|got| match got {
            true => Ok(0),
            false => Err(Errno::EAGAIN),
        }),
        UNLOCK_PI => unlock(&thread, spot),
        WAKE => Ok(process::wake(spot.key, counts.0, u32::MAX)),
        WAKE_BITSET if third == 0 => Err(Errno::EINVAL),
        WAKE_BITSET => Ok(process::wake(spot.key, counts.0, third)),
        WAKE_OP => wake_by_operation(&thread, (spot, other()), counts, third),
        REQUEUE => {
            let done = process::requeue(spot.key, other().key, counts, || true);
            Ok(done.map_or(0, |(woken, _)| woken))
        }
        CMP_REQUEUE => compare_and_requeue(&thread, (spot, other()), counts, third),
        CMP_REQUEUE_PI => requeue_to_lock(&thread, (spot, other()), counts, third),
        _ => Err(Errno::ENOSYS),
    };
    answer(thread, result)
}

/// Whether there is such an operation, by the clock that it says.
fn is_known(operation: u64) -> bool {
    match operation & COMMAND {
        WAIT_BITSET | WAIT_REQUEUE_PI | LOCK_PI2 => true,
        WAIT | WAKE | REQUEUE..=TRYLOCK_PI | WAKE_BITSET | CMP_REQUEUE_PI => {
            operation & CLOCK_REALTIME == 0
        }
        _ => false,
    }
}

/// A futex that processes may share must be there, also where nothing is read of it; all must be
/// where programs are.
fn is_a_place(thread: &Thread, operation: u64, address: u64) -> Result<(), Errno> {
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
    (from, to): (Spot, Spot),
    counts: (u32, u32),
    expected: u32,
) -> Result<u64, Errno> {
    let mut found = Ok(0);
    let done = process::requeue(from.key, to.key, counts, || {
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
    (spot, value): (Spot, u64),
    timeout: u64,
    groups: u32,
) -> Flow {
    if groups == 0 {
        return answer(thread, Err(Errno::EINVAL));
    }
    let still = |thread: &mut Thread| {
        let found = thread.process.space().word(spot.address)?;
        (found == value as u32).then_some(None).ok_or(Errno::EAGAIN)
    };
    match deadline_of(&mut thread, operation, timeout) {
        Ok(deadline_ns) => wait_if(thread, spot.key, (groups, deadline_ns), still),
        Err(error) => answer(thread, Err(error)),
    }
}

/// Has a thread wait if `still` says so, which answers who has what it waits for, if it is a lock; else
/// it goes on with the error that this gives. `EINTR` stands for one that only has to look again.
fn wait_if(
    mut thread: Box<Thread>,
    key: Key,
    (groups, deadline_ns): (u32, Option<u64>),
    still: impl FnOnce(&mut Thread) -> Result<Option<u64>, Errno>,
) -> Flow {
    // Where even the kernel's own memory runs out nobody waits: it may look again.
    if has_room_to_free(WAIT_BYTES).is_err() {
        return answer(thread, Err(Errno::EAGAIN));
    }
    // Whoever wakes it may run it on another core at once.
    thread.extended.save();
    thread.calling = Some(super::number::FUTEX);
    let waiter = Waiter::new(thread, groups, deadline_ns);
    let mut found = Ok(None);
    let still = |thread: &mut Thread| {
        found = still(thread);
        if found.is_ok() && (thread.notice.is_told() || thread.cannot_wait()) {
            found = Err(Errno::EINTR);
        }
        found.ok()
    };
    match process::wait_for_holder(key, waiter, still) {
        None => Flow::Away,
        Some(thread) => answer(thread, found.map(|_| 0)),
    }
}

/// Locks a futex if nobody holds it; else says in it that somebody waits, and answers who holds it.
fn take_or_queue(thread: &Thread, address: u64, queues: bool) -> Result<Option<u64>, Errno> {
    let own = thread.id as u32;
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    loop {
        let (is_free, is_own) = (word & HOLDER == 0, word & HOLDER == own);
        if is_own {
            return Err(Errno::EDEADLK);
        }
        if !is_free && !queues {
            return Ok(Some(u64::from(word & HOLDER)));
        }
        let new = if is_free {
            own | (word & !HOLDER)
        } else {
            word | WAITERS
        };
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok((!is_free).then_some(u64::from(word & HOLDER)));
        }
        word = found;
    }
}

fn try_lock(thread: &Thread, address: u64) -> Result<bool, Errno> {
    let holder = take_or_queue(thread, address, false)?;
    Ok(holder.is_none())
}

fn lock(mut thread: Box<Thread>, operation: u64, spot: Spot, timeout: u64) -> Flow {
    // The older of the two takes a time of the realtime clock, whatever it says.
    let clock = match operation & COMMAND {
        LOCK_PI => operation | CLOCK_REALTIME,
        _ => operation,
    };
    let deadline_ns = match deadline_of(&mut thread, clock, timeout) {
        Ok(deadline_ns) => deadline_ns,
        Err(error) => return answer(thread, Err(error)),
    };
    let mut taken = false;
    let still = |thread: &mut Thread| {
        let holder = take_or_queue(thread, spot.address, true)?;
        taken = holder.is_none();
        // Having it, there is nothing to wait for; which is no error in the end.
        holder.map(Some).ok_or(Errno::EAGAIN)
    };
    match wait_if(thread, spot.key, (u32::MAX, deadline_ns), still) {
        Flow::On(thread) if taken => answer(thread, Ok(0)),
        flow => flow,
    }
}

/// Hands a lock to the first who waits for it.
fn unlock(thread: &Thread, spot: Spot) -> Result<u64, Errno> {
    let own = thread.id as u32;
    let mut result = Ok(0);
    process::hand_over(spot.key, |next, more| {
        let handed = give_to(thread, spot.address, own, next.map(|next| (next, more)));
        result = handed.map(|()| 0);
        result.is_ok()
    });
    result
}

/// Writes the next holder to a lock that `own` holds.
fn give_to(
    thread: &Thread,
    address: u64,
    own: u32,
    next: Option<(u64, bool)>,
) -> Result<(), Errno> {
    let new = next.map_or(0, |(next, more)| {
        next as u32 | if more { WAITERS } else { 0 }
    });
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    loop {
        if word & HOLDER != own {
            return Err(Errno::EPERM);
        }
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok(());
        }
        word = found;
    }
}

/// Moves those who wait to a lock; the first gets it, if nobody holds it.
fn requeue_to_lock(
    thread: &Thread,
    (from, to): (Spot, Spot),
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
    process::hand_over(from.key, |next, _| {
        let free =
            next.is_some_and(|next| give_to(thread, to.address, 0, Some((next, true))).is_ok());
        woken = u64::from(free);
        free
    });
    let moved = process::requeue(from.key, to.key, (0, most), || is_expected().is_ok());
    let (_, moved) = moved.ok_or(Errno::EAGAIN)?;
    if moved > 0 {
        tell_of_waiters(thread, to.address)?;
        let word = thread.process.space().word(to.address)?;
        process::set_holder(to.key, u64::from(word & HOLDER));
    }
    Ok(woken + moved)
}

fn tell_of_waiters(thread: &Thread, address: u64) -> Result<(), Errno> {
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

/// Changes the second word, wakes at the first, and by what the second was at that as well.
fn wake_by_operation(
    thread: &Thread,
    (first, second): (Spot, Spot),
    counts: (u32, u32),
    code: u32,
) -> Result<u64, Errno> {
    if !second.address.is_multiple_of(4) {
        return Err(Errno::EINVAL);
    }
    let both = {
        let mut space = thread.process.space();
        let mut word = space.word(second.address)?;
        loop {
            let (new, both) = operate(word, code).ok_or(Errno::ENOSYS)?;
            let found = space.compare_exchange(second.address, word, new)?;
            if found == word {
                break both;
            }
            word = found;
        }
    };
    let woken = process::wake(first.key, counts.0, u32::MAX);
    let more = if both {
        process::wake(second.key, counts.1, u32::MAX)
    } else {
        0
    };
    Ok(woken + more)
}

/// What FUTEX_WAKE_OP makes of a word, and whether it holds of what the word was (futex(2)).
fn operate(word: u32, code: u32) -> Option<(u32, bool)> {
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

/// Reads a time; none at address 0.
fn time_ns(thread: &mut Thread, address: u64) -> Result<Option<u64>, Errno> {
    const NS_PER_S: u64 = 1_000_000_000;
    if address == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 16];
    thread.process.space().read(address, &mut bytes)?;
    let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, ns) = (half(0), half(8));
    if ns >= NS_PER_S || (seconds as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    Ok(Some(seconds.saturating_mul(NS_PER_S).saturating_add(ns)))
}

/// When a time from now on is over, by the kernel's clock; none at address 0.
pub(super) fn deadline(thread: &mut Thread, timeout: u64) -> Result<Option<u64>, Errno> {
    let Some(time_ns) = time_ns(thread, timeout)? else {
        return Ok(None);
    };
    // A call that is made again has what is left of its time.
    let deadline_ns = *thread.deadline_ns.get_or_insert_with(|| after(time_ns));
    Ok(Some(deadline_ns))
}

/// The time so long from now, or somewhat later.
fn after(time_ns: u64) -> u64 {
    /// Linux' default (`PR_SET_TIMERSLACK`): programs whose times are shorter than it takes to be woken
    /// rely on that they are longer.
    const SLACK_NS: u64 = 50_000;
    let slack_ns = if time_ns > 0 { SLACK_NS } else { 0 };
    clock::now_ns()
        .saturating_add(time_ns)
        .saturating_add(slack_ns)
}

/// The same for a futex, most of whose operations take a time of one of the base's clocks.
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
    Ok(Some(after(time_ns.saturating_sub(base_now_ns))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(operation: u32, comparison: u32, argument: u32, compared: u32) -> u32 {
        operation << 28 | comparison << 24 | (argument & 0xfff) << 12 | compared & 0xfff
    }

    #[test]
    fn words_are_operated_upon() {
        let minus_one = u32::MAX;
        assert_eq!(operate(5, code(0, 0, 7, 5)), Some((7, true)));
        assert_eq!(operate(5, code(1, 1, minus_one, 5)), Some((4, false)));
        assert_eq!(operate(5, code(2, 4, 2, minus_one)), Some((7, true)));
        assert_eq!(operate(7, code(3, 2, 2, 0)), Some((5, false)));
        assert_eq!(operate(7, code(4 | 8, 5, 3, 7)), Some((15, true)));
        assert_eq!(
            operate(minus_one, code(0, 3, 0, minus_one)),
            Some((0, true))
        );
        assert_eq!(operate(0, code(5, 0, 0, 0)), None);
        assert_eq!(operate(0, code(0, 6, 0, 0)), None);
    }
}
