//! Timeouts of calls that wait.

use crate::model::errno::Errno;
use crate::syscall::deadline::deadline_after;
use crate::task::thread::Thread;

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;

/// Unit of the second half of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// `struct timeval`.
    Microseconds,
    /// `struct timespec`.
    Nanoseconds,
}

impl Unit {
    fn ns(self) -> u64 {
        match self {
            Self::Microseconds => 1000,
            Self::Nanoseconds => 1,
        }
    }
}

/// Returns the time at which a call ends that waits that long, in ns since boot: also one that is made
/// again.
pub(super) fn deadline_ns(thread: &mut Thread, timeout_ns: Option<u64>) -> Option<u64> {
    let timeout_ns = timeout_ns?;
    let begun = thread.call_deadline_ns;
    let deadline_ns = begun.unwrap_or_else(|| deadline_after(timeout_ns));
    thread.call_deadline_ns = Some(deadline_ns);
    Some(deadline_ns)
}

/// Returns a timeout in ms, in ns; `None` if it is negative.
pub(super) fn of_ms(timeout_ms: u64) -> Option<u64> {
    let timeout_ms = u64::try_from(timeout_ms as i32).ok()?;
    Some(timeout_ms * NS_PER_MS)
}

/// Reads a time at an address, in ns; `None` at address 0.
pub(super) fn read(thread: &Thread, address: u64, unit: Unit) -> Result<Option<u64>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let mut bytes = [0; 16];
    thread.process.space().read(address, &mut bytes)?;
    of_bytes(bytes, unit).map(Some)
}

/// Converts a time to ns.
pub(super) fn of_bytes(bytes: [u8; 16], unit: Unit) -> Result<u64, Errno> {
    let half = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (seconds, rest) = (u64::try_from(half(0)), u64::try_from(half(8)));
    match (seconds, rest) {
        (Ok(seconds), Ok(rest)) if rest < NS_PER_S / unit.ns() => {
            let rest_ns = rest * unit.ns();
            Ok(seconds.saturating_mul(NS_PER_S).saturating_add(rest_ns))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Converts a time in ns to what programs have.
pub(super) fn to_bytes(ns: u64, unit: Unit) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(ns / NS_PER_S).to_le_bytes());
    bytes[8..].copy_from_slice(&(ns % NS_PER_S / unit.ns()).to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back() {
        let ns = 5_000_007_000;
        for unit in [Unit::Microseconds, Unit::Nanoseconds] {
            assert_eq!(of_bytes(to_bytes(ns, unit), unit), Ok(ns));
        }
        let bytes = to_bytes(999_999_999, Unit::Nanoseconds);
        assert_eq!(of_bytes(bytes, Unit::Microseconds), Err(Errno::EINVAL));
        assert_eq!(of_bytes([0xff; 16], Unit::Nanoseconds), Err(Errno::EINVAL));
    }

    #[test]
    fn negative_timeouts_are_none() {
        assert_eq!(of_ms(u64::from(u32::MAX)), None);
        assert_eq!(of_ms(3), Some(3_000_000));
    }
}
