//! Setting a node's clock to the base's.
//!
//! A node's clock runs by the time stamp counter, as the base's does, which also goes on while the node is
//! paused. But the base's is corrected, and older kernels lose time if they read the counter only after many
//! minutes.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use insula_agent::frame::{self, Reader};
use insula_agent::{ClockAnswer, ClockRequest, Request};
use insula_base::error::Error;
use insula_driver::Driver;
use insula_driver::name::Name;
use socket2::Socket;

use super::connect::to_agent_at_once;

/// Time that the agent has to answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Readings, of which the one that took the shortest time counts.
const READINGS: u32 = 8;
/// Most adjustments: an agent may be interrupted in one.
const ADJUSTMENTS_MAX: u32 = 3;
/// Difference that is not corrected.
const TOLERANCE_NS: u64 = 100_000;

/// Sets the clock of a running node to the base's, as exactly as the agent's answers tell. A node without an agent,
/// or with one that does not know the request, keeps its own.
///
/// # Errors
/// When its agent does not set it.
pub fn set_clock(driver: &Driver, name: &Name) -> Result<(), Error> {
    let Ok(stream) = to_agent_at_once(driver, name) else {
        return Ok(());
    };
    let attempt = || -> io::Result<()> {
        let mut agent = Agent::new(&stream)?;
        if agent.ask(ClockRequest::Read).is_err() {
            // An older agent ends the connection.
            return Ok(());
        }
        for _ in 0..ADJUSTMENTS_MAX {
            let Some(by_ns) = agent.reading()?.correction_ns() else {
                return Ok(());
            };
            let answer = agent.ask(ClockRequest::Adjust(by_ns))?;
            answer
                .error
                .map_or(Ok(()), |why| Err(io::Error::other(why)))?;
        }
        Ok(())
    };
    attempt().map_err(|error| {
        Error::new(format!("the clock of the node '{name}' cannot be set")).because(error)
    })
}

/// The agent of a node, asked about its clock.
struct Agent<'a> {
    stream: &'a Socket,
    reader: Reader<&'a Socket>,
}

impl<'a> Agent<'a> {
    fn new(stream: &'a Socket) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        frame::write(stream, &Request::Clock)?;
        let reader = Reader::new(stream);
        Ok(Self { stream, reader })
    }

    fn ask(&mut self, request: ClockRequest) -> io::Result<ClockAnswer> {
        frame::write(self.stream, &request)?;
        let answer: Option<ClockAnswer> = self.reader.read().map_err(io::Error::other)?;
        answer.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// The best of several readings.
    fn reading(&mut self) -> io::Result<Reading> {
        let mut best = Reading::UNKNOWN;
        for _ in 0..READINGS {
            let asked_ns = now_ns();
            let told_ns = self.ask(ClockRequest::Read)?.unix_ns;
            let reading = Reading::new(asked_ns, told_ns, now_ns());
            if reading.error_ns < best.error_ns {
                best = reading;
            }
        }
        Ok(best)
    }
}

/// A comparison of a node's clock with the base's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    /// By how much the node's is ahead.
    ahead_ns: i64,
    /// By how much that may be wrong.
    error_ns: u64,
}

impl Reading {
    const UNKNOWN: Self = Self {
        ahead_ns: 0,
        error_ns: u64::MAX,
    };

    /// The node told its time between two of the base's.
    fn new(asked_ns: u64, told_ns: u64, answered_ns: u64) -> Self {
        // The base's clock may have been set back meanwhile.
        let Some(took_ns) = answered_ns.checked_sub(asked_ns) else {
            return Self::UNKNOWN;
        };
        let between = i128::from(asked_ns) + i128::from(took_ns / 2);
        match i64::try_from(i128::from(told_ns) - between) {
            Ok(ahead_ns) => Self {
                ahead_ns,
                error_ns: took_ns.div_ceil(2),
            },
            Err(_) => Self::UNKNOWN,
        }
    }

    /// What has to be added to the node's clock; `None` if it is as right as is known.
    fn correction_ns(self) -> Option<i64> {
        let is_off = self.ahead_ns.unsigned_abs() > self.error_ns.saturating_add(TOLERANCE_NS);
        is_off.then(|| self.ahead_ns.saturating_neg())
    }
}

/// The base's time, in nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_corrected_by_what_is_certain() {
        const S: u64 = 1_000_000_000;
        for (asked, told, answered, correction) in [
            (10 * S, 10 * S + S / 2, 11 * S, None),
            (10 * S, 10 * S, 11 * S, None),
            (10 * S, 10 * S + 500_000, 10 * S + 2_000, Some(-499_000)),
            (10 * S, 10 * S + 50_000, 10 * S + 2_000, None),
            (10 * S, 7 * S, 10 * S, Some(3 * S.cast_signed())),
            // Set back meanwhile, or too far away.
            (10 * S, 10 * S, 9 * S, None),
            (0, u64::MAX, 0, None),
        ] {
            let reading = Reading::new(asked, told, answered);
            assert_eq!(reading.correction_ns(), correction, "{reading:?}");
        }
    }
}
