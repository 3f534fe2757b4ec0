//! Timeouts of delegated calls. A restarted call gets the remaining time: on Linux a signal without
//! a handler does not disturb it at all.
//!
//! Not for select, pselect6 and ppoll, for which Linux itself writes back the remaining time.

use crate::hw::clock;
use crate::syscall::call::{Call, TimeoutArgument};
use crate::task::thread::Thread;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Stores the deadline of a call; for a restarted call, replaces the timeout by the remaining time.
pub(super) fn set_remaining_time(thread: &mut Thread, call: &Call, arguments: &mut [u64; 6]) {
    let Some(timeout_argument) = call.relative_timeout(arguments) else {
        return;
    };
    let now_ns = clock::now_ns();
    let Some(deadline_ns) = thread.call_deadline_ns else {
        thread.call_deadline_ns =
            timeout_ns(thread, timeout_argument, arguments).map(|ns| now_ns.saturating_add(ns));
        return;
    };
    let left_ns = deadline_ns.saturating_sub(now_ns);
    match timeout_argument {
        TimeoutArgument::Milliseconds(at) => arguments[at] = left_ns.div_ceil(NS_PER_MS),
        TimeoutArgument::Timespec(at) => {
            let time = [left_ns / NS_PER_S, left_ns % NS_PER_S];
            if let Some(address) = thread.put_scratch(&time) {
                arguments[at] = address;
            }
        }
    }
}

/// Stores the deadline of a call whose timeout is at an address; for a restarted call, returns the
/// remaining time in seconds and ns.
pub(super) fn remaining_time(thread: &mut Thread, address: u64) -> Option<[u64; 2]> {
    let now_ns = clock::now_ns();
    let Some(deadline_ns) = thread.call_deadline_ns else {
        let timeout_ns = timespec_at(thread, address);
        thread.call_deadline_ns = timeout_ns.map(|ns| now_ns.saturating_add(ns));
        return None;
    };
    let left_ns = deadline_ns.saturating_sub(now_ns);
    Some([left_ns / NS_PER_S, left_ns % NS_PER_S])
}

/// Reads a timeout in ns; `None` if it is invalid, which the base will report.
fn timespec_at(thread: &Thread, address: u64) -> Option<u64> {
    let mut bytes = [0; 16];
    thread.process.space().read(address, &mut bytes).ok()?;
    timespec_ns(&bytes)
}

/// Returns a call's timeout in ns; `None` if it is infinite, or invalid, which the base will
/// report.
fn timeout_ns(
    thread: &Thread,
    timeout_argument: TimeoutArgument,
    arguments: &[u64; 6],
) -> Option<u64> {
    match timeout_argument {
        TimeoutArgument::Milliseconds(at) => {
            let ms = u64::try_from(arguments[at] as i32).ok()?;
            Some(ms * NS_PER_MS)
        }
        TimeoutArgument::Timespec(at) if arguments[at] == 0 => None,
        TimeoutArgument::Timespec(at) => timespec_at(thread, arguments[at]),
    }
}

/// Converts a `struct timespec` to ns; `None` if it is invalid.
fn timespec_ns(bytes: &[u8; 16]) -> Option<u64> {
    let half = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, ns) = (u64::try_from(half(0)).ok()?, u64::try_from(half(8)).ok()?);
    (ns < NS_PER_S).then(|| seconds.saturating_mul(NS_PER_S).saturating_add(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_times_are_rejected() {
        let bytes = |seconds: i64, ns: i64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&seconds.to_le_bytes());
            bytes[8..].copy_from_slice(&ns.to_le_bytes());
            bytes
        };
        assert_eq!(timespec_ns(&bytes(2, 5)), Some(2_000_000_005));
        assert_eq!(timespec_ns(&bytes(i64::MAX, 0)), Some(u64::MAX));
        for (seconds, ns) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(timespec_ns(&bytes(seconds, ns)), None);
        }
    }
}
