//! Repeated measurement of what takes microseconds.

use std::time::{Duration, Instant};

use testbed::base::Finding;

use crate::inside::Inside;

/// Measurements in a round, and earlier ones that are not counted.
const TRIPS: usize = 2000;
const WARM: usize = 200;

/// Durations of a round, sorted.
pub struct Trips(Vec<Duration>);

impl Trips {
    /// Number of all repetitions in a round, with those that are not counted.
    pub const COUNT: usize = WARM + TRIPS;

    /// Measures a round.
    ///
    /// # Errors
    /// When one fails.
    pub fn measure(mut trip: impl FnMut() -> Result<(), Finding>) -> Result<Self, Finding> {
        (0..WARM).try_for_each(|_| trip())?;
        let mut times = Vec::with_capacity(TRIPS);
        for _ in 0..TRIPS {
            let began = Instant::now();
            trip()?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(Self(times))
    }

    /// Median, in µs.
    #[must_use]
    pub fn median_us(&self) -> f64 {
        self.0[TRIPS / 2].as_secs_f64() * 1e6
    }

    /// Records their median as `id`, and their 99th percentile as `id-p99`, both in µs.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn record(&self, inside: &Inside, id: &str) -> Result<(), Finding> {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        inside.record(id, self.median_us())?;
        inside.record(&format!("{id}-p99"), us(self.0[TRIPS * 99 / 100]))
    }
}
