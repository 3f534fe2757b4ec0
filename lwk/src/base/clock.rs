//! The base's clocks.

/// The base's clocks at one reading of the time stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BaseClock {
    pub(super) tsc: u64,
    pub(super) realtime_ns: u64,
    pub(super) monotonic_ns: u64,
    /// Nanoseconds per tick, times 2^32.
    pub(super) mult: u64,
    /// Fraction of both times, in ns times 2^32.
    pub(super) fraction: u64,
    /// Time stamp counter when this was read.
    pub(super) read_at: u64,
}

impl BaseClock {
    fn since_ns(&self, stamp: u64) -> u64 {
        let ticks = u128::from(stamp.saturating_sub(self.tsc));
        ((ticks * u128::from(self.mult) + u128::from(self.fraction)) >> 32) as u64
    }

    /// Returns the time stamp counter at the reading; the clocks may be wrong for later times.
    #[must_use]
    pub fn read_at(&self) -> u64 {
        self.read_at
    }

    /// Returns `CLOCK_REALTIME` at a time of the counter.
    #[must_use]
    pub fn realtime_ns(&self, stamp: u64) -> u64 {
        self.realtime_ns.wrapping_add(self.since_ns(stamp))
    }

    /// Returns `CLOCK_MONOTONIC` at a time of the counter.
    #[must_use]
    pub fn monotonic_ns(&self, stamp: u64) -> u64 {
        self.monotonic_ns.wrapping_add(self.since_ns(stamp))
    }
}
