//! The node's clock, which has nothing to run by but the time stamp counter.
//!
//! The base's runs by the same counter, but is corrected (NTP). So the base tells what it shows at a value of
//! the counter, and this clock follows: it is slewed as adjtime(3) does it, or set if it is far away. A clock
//! that a program of the node keeps is left alone: such a program marks it as synchronized, which nothing here
//! does.

#![allow(
    unsafe_code,
    reason = "the instruction and the system call have no safe name"
)]

use std::io;
use std::mem::zeroed;
use std::time::Duration;

use insula_agent::frame::{self, FrameError, Reader};
use insula_agent::options::Clock;
use insula_agent::{ClockAnswer, ClockRequest};
use libc::{ADJ_NANO, ADJ_OFFSET_SINGLESHOT, ADJ_SETOFFSET, STA_UNSYNC, timex};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use socket2::Socket;

/// Readings, of which the one that took the shortest time counts.
const READINGS: u32 = 8;
/// Difference that is not corrected.
const TOLERANCE_NS: u64 = 50_000;
/// Difference from which on the clock is set: slewed, it would take longer than 20 s.
const STEP_NS: u64 = 10_000_000;
const NS_PER_S: i64 = 1_000_000_000;

/// Answers the base's requests about the clock, until it asks no more.
pub(crate) fn serve(stream: &Socket, mut reader: Reader<Socket>) -> Result<(), FrameError> {
    while let Some(request) = reader.read()? {
        let done = match request {
            ClockRequest::Read => Ok(()),
            ClockRequest::Adjust(by_ns) => adjust(by_ns),
            ClockRequest::Follow(base) => follow(base),
        };
        let answer = ClockAnswer {
            unix_ns: now_ns(),
            error: done.err().map(|error: io::Error| error.to_string()),
        };
        frame::write(stream, &answer)?;
    }
    Ok(())
}

/// Sets the clock to a time in nanoseconds since 1970.
pub(crate) fn set(unix_ns: u64) -> io::Result<()> {
    let time = Timespec::try_from(Duration::from_nanos(unix_ns)).map_err(|_| Errno::INVAL)?;
    Ok(clock_settime(ClockId::Realtime, time)?)
}

fn adjust(by_ns: i64) -> io::Result<()> {
    let to_ns = now_ns().checked_add_signed(by_ns);
    set(to_ns.ok_or(Errno::INVAL)?)
}

/// The time in nanoseconds since 1970; 0 before that.
fn now_ns() -> u64 {
    let now = Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// The time stamp counter.
pub(crate) fn time_stamp() -> u64 {
    // SAFETY: every x86-64 processor has it, and it is not disabled for this process.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What is done about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Correction {
    None,
    /// Slew by this.
    Slew {
        us: i64,
    },
    /// Set at once, by this.
    Step {
        ns: i64,
    },
}

impl Correction {
    /// That of a clock that is ahead by this.
    fn of(ahead_ns: i64) -> Self {
        match ahead_ns.unsigned_abs() {
            ..TOLERANCE_NS => Self::None,
            TOLERANCE_NS..STEP_NS => Self::Slew {
                us: -ahead_ns / 1000,
            },
            _ => Self::Step {
                ns: ahead_ns.saturating_neg(),
            },
        }
    }

    fn apply(self) -> io::Result<()> {
        let mut change = unchanged();
        match self {
            Self::None => return Ok(()),
            Self::Slew { us } => {
                change.modes = ADJ_OFFSET_SINGLESHOT;
                change.offset = us;
            }
            Self::Step { ns } => {
                change.modes = ADJ_SETOFFSET | ADJ_NANO;
                change.time.tv_sec = ns.div_euclid(NS_PER_S);
                // In nanoseconds, and not negative.
                change.time.tv_usec = ns.rem_euclid(NS_PER_S);
            }
        }
        adjtimex(&mut change)
    }
}

/// Follows the base's clock, unless a program of the node keeps this one.
pub(crate) fn follow(base: Clock) -> io::Result<()> {
    let mut state = unchanged();
    adjtimex(&mut state)?;
    if state.status & STA_UNSYNC == 0 {
        return Ok(());
    }
    Correction::of(ahead_ns(base).ok_or(Errno::INVAL)?).apply()
}

/// By how much this clock is ahead of the base's.
fn ahead_ns(base: Clock) -> Option<i64> {
    let readings = (0..READINGS).map(|_| {
        let before = time_stamp();
        let own_ns = now_ns();
        let took = time_stamp().saturating_sub(before);
        (took, before + took / 2, own_ns)
    });
    let (_, tsc, own_ns) = readings.min()?;
    let base_ns = base.unix_ns_at(tsc)?;
    i64::try_from(i128::from(own_ns) - i128::from(base_ns)).ok()
}

/// A request that changes nothing.
fn unchanged() -> timex {
    // SAFETY: it consists of numbers, which can be 0.
    unsafe { zeroed() }
}

/// Changes the clock's state, and reads it (adjtimex(2)).
fn adjtimex(state: &mut timex) -> io::Result<()> {
    // SAFETY: the structure is whole and nobody else has it.
    match unsafe { libc::adjtimex(state) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_difference_is_slewed_and_a_large_one_set() {
        for (ahead_ns, correction) in [
            (0, Correction::None),
            (-49_999, Correction::None),
            (3_000_000, Correction::Slew { us: -3000 }),
            (-9_999_999, Correction::Slew { us: 9999 }),
            (10_000_000, Correction::Step { ns: -10_000_000 }),
            (i64::MIN, Correction::Step { ns: i64::MAX }),
        ] {
            assert_eq!(Correction::of(ahead_ns), correction, "{ahead_ns}");
        }
    }

    #[test]
    fn the_difference_is_that_of_the_same_moment() {
        let (tsc, own_ns) = (time_stamp(), now_ns());
        // At this rate the base's clock stands still.
        let base = |ahead_ns: u64| Clock {
            unix_ns: own_ns - ahead_ns,
            tsc,
            tsc_khz: u64::MAX,
        };
        let ahead = ahead_ns(base(5_000_000_000)).unwrap();
        assert!((5_000_000_000..65_000_000_000).contains(&ahead), "{ahead}");
        let later = Clock {
            tsc: u64::MAX,
            ..base(0)
        };
        assert_eq!(ahead_ns(later), None);
        adjtimex(&mut unchanged()).unwrap();
    }
}
