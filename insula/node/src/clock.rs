//! The base's clock, as a node of Linux gets it at its start and from time to time.

use std::time::{SystemTime, UNIX_EPOCH};

use insula_agent::options::Clock;
use insula_driver::tsc;

/// Readings, of which the one that took the shortest time counts: this process may be interrupted in one.
const READINGS: u32 = 8;

/// The time now, at a value of the time stamp counter, whose frequency is `tsc_khz`.
#[must_use]
pub(super) fn now(tsc_khz: u32) -> Clock {
    let readings = (0..READINGS).map(|_| reading(tsc_khz));
    let best = readings.min_by_key(|&(took, _)| took);
    best.map_or_else(|| reading(tsc_khz).1, |(_, clock)| clock)
}

/// The time now, at a value that the node's kernel finds in the time stamp counter, if that is ahead of the base's by
/// `tsc_offset`, modulo 2^64.
#[must_use]
pub fn now_in_node(tsc_khz: u32, tsc_offset: u64) -> Clock {
    let base = now(tsc_khz);
    Clock {
        tsc: base.tsc.wrapping_add(tsc_offset),
        ..base
    }
}

/// A reading, and how long it took, in ticks.
fn reading(tsc_khz: u32) -> (u64, Clock) {
    let before = tsc();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let took = tsc().saturating_sub(before);
    let clock = Clock {
        unix_ns: now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or_default()),
        tsc: before + took / 2,
        tsc_khz: tsc_khz.into(),
    };
    (took, clock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_of_the_counter() {
        let clock = now(1);
        assert!(clock.unix_ns > 1_700_000_000_000_000_000);
        assert!(clock.tsc <= tsc());
        assert_eq!(clock.unix_ns_at(clock.tsc), Some(clock.unix_ns));
        // A counter that is behind.
        let behind = now_in_node(1, clock.tsc.wrapping_neg());
        assert!(behind.tsc <= tsc() - clock.tsc);
    }
}
