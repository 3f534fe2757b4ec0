//! Calls of the base's that take a time at most. One that is made again after a signal that came to
//! nothing has what is left of its time: as on Linux, where such a signal does not disturb it at all.
//!
//! select, pselect6 and ppoll are none of these: Linux itself writes there what is left.

use crate::clock;
use crate::process::Thread;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Which argument of a call tells its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// This one, in ms; there is none if it is negative.
    Milliseconds(usize),
    /// This one is the address of a `struct timespec`, or 0.
    Time(usize),
}

/// The time of a call that begins when the call does.
fn limit(number: u64, arguments: &[u64; 6]) -> Option<Limit> {
    /// `TIMER_ABSTIME`, a flag of clock_nanosleep(2).
    const ABSOLUTE: u64 = 1;
    match number {
        super::number::POLL => Some(Limit::Milliseconds(2)),
        super::number::EPOLL_WAIT | super::number::EPOLL_PWAIT => Some(Limit::Milliseconds(3)),
        super::number::NANOSLEEP => Some(Limit::Time(0)),
        super::number::CLOCK_NANOSLEEP if arguments[1] & ABSOLUTE == 0 => Some(Limit::Time(2)),
        super::number::EPOLL_PWAIT2 | super::number::SEMTIMEDOP => Some(Limit::Time(3)),
        _ => None,
    }
}

/// Notes by when a call is to be over that is about to be made; of one that is made again it changes
/// the arguments to what is left of its time.
pub(super) fn shorten(thread: &mut Thread, number: u64, arguments: &mut [u64; 6]) {
    let Some(limit) = limit(number, arguments) else {
        return;
    };
    let now_ns = clock::now_ns();
    let Some(deadline_ns) = thread.deadline_ns else {
        thread.deadline_ns = time_of(thread, limit, arguments).map(|ns| now_ns.saturating_add(ns));
        return;
    };
    let left_ns = deadline_ns.saturating_sub(now_ns);
    match limit {
        Limit::Milliseconds(at) => arguments[at] = left_ns.div_ceil(NS_PER_MS),
        Limit::Time(at) => {
            let time = [left_ns / NS_PER_S, left_ns % NS_PER_S];
            if let Some(address) = thread.put_scratch(&time) {
                arguments[at] = address;
            }
        }
    }
}

/// How long a call is to take, in ns; none if that is for ever, or nonsense of which the base will
/// complain.
fn time_of(thread: &mut Thread, limit: Limit, arguments: &[u64; 6]) -> Option<u64> {
    match limit {
        Limit::Milliseconds(at) => {
            let ms = u64::try_from(arguments[at] as i32).ok()?;
            Some(ms * NS_PER_MS)
        }
        Limit::Time(at) => {
            let mut bytes = [0; 16];
            if arguments[at] == 0 {
                return None;
            }
            thread
                .process
                .space()
                .read(arguments[at], &mut bytes)
                .ok()?;
            nanoseconds(&bytes)
        }
    }
}

/// The time that a `struct timespec` tells, in ns.
fn nanoseconds(bytes: &[u8; 16]) -> Option<u64> {
    let half = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, ns) = (u64::try_from(half(0)).ok()?, u64::try_from(half(8)).ok()?);
    (ns < NS_PER_S).then(|| seconds.saturating_mul(NS_PER_S).saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_begin_with_the_call() {
        let relative = [0; 6];
        let absolute = [0, 1, 0, 0, 0, 0];
        assert_eq!(limit(7, &relative), Some(Limit::Milliseconds(2)));
        assert_eq!(limit(230, &relative), Some(Limit::Time(2)));
        assert_eq!(limit(230, &absolute), None);
        assert_eq!(limit(0, &relative), None);
    }

    #[test]
    fn only_sensible_times_are_times() {
        let bytes = |seconds: i64, ns: i64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&seconds.to_le_bytes());
            bytes[8..].copy_from_slice(&ns.to_le_bytes());
            bytes
        };
        assert_eq!(nanoseconds(&bytes(2, 5)), Some(2_000_000_005));
        assert_eq!(nanoseconds(&bytes(i64::MAX, 0)), Some(u64::MAX));
        for (seconds, ns) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(nanoseconds(&bytes(seconds, ns)), None);
        }
    }
}
