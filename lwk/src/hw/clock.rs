//! Time since boot, by the time stamp counter.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use insula_bare::cpu::time_stamp;

static TSC_KHZ: AtomicU32 = AtomicU32::new(0);
/// Nanoseconds per tick, in units of 2^-48: a time is read often, and a multiplication is much
/// faster than a division. 0 until the frequency is set.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
const FRACTION_BITS: u32 = 48;
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Starts the clock. All times are 0 until the frequency is set.
pub fn init() {
    STARTED.store(time_stamp(), Ordering::Relaxed);
}

/// Sets the counter's frequency in kHz.
pub fn set_frequency(tsc_khz: u32) {
    TSC_KHZ.store(tsc_khz, Ordering::Relaxed);
    NS_PER_TICK.store(ns_per_tick(tsc_khz), Ordering::Relaxed);
}

/// Returns the counter's frequency in kHz; 0 if it is not known yet.
#[must_use]
pub fn tsc_khz() -> u32 {
    TSC_KHZ.load(Ordering::Relaxed)
}

/// Returns the nanoseconds since boot.
#[must_use]
pub fn now_ns() -> u64 {
    let ticks = time_stamp().wrapping_sub(STARTED.load(Ordering::Relaxed));
    scale(ticks, NS_PER_TICK.load(Ordering::Relaxed))
}

fn ns_per_tick(khz: u32) -> u64 {
    let factor = (1_000_000_u128 << FRACTION_BITS).checked_div(u128::from(khz));
    factor.map_or(0, |factor| u64::try_from(factor).unwrap_or(u64::MAX))
}

fn scale(ticks: u64, ns_per_tick: u64) -> u64 {
    ((u128::from(ticks) * u128::from(ns_per_tick)) >> FRACTION_BITS) as u64
}

/// Reads the time stamp counter.
#[must_use]
pub fn stamp() -> u64 {
    time_stamp()
}

/// Converts a time since boot, in ns, to the time stamp counter.
#[must_use]
pub fn tsc_at(ns: u64) -> u64 {
    STARTED
        .load(Ordering::Relaxed)
        .wrapping_add(ns_to_ticks(ns))
}

/// Converts nanoseconds to ticks of the time stamp counter.
#[must_use]
pub fn ns_to_ticks(ns: u64) -> u64 {
    let ticks = u128::from(ns) * u128::from(tsc_khz()) / 1_000_000;
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

/// Converts microseconds to ticks of the time stamp counter.
#[must_use]
pub(crate) fn us_to_ticks(us: u32) -> u64 {
    u64::from(us) * u64::from(tsc_khz()) / 1000
}

/// Converts ticks of a counter with frequency `khz` to nanoseconds.
#[must_use]
pub fn ticks_to_ns(ticks: u64, khz: u32) -> u64 {
    let ns = (u128::from(ticks) * 1_000_000).checked_div(u128::from(khz));
    ns.map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_convert_to_nanoseconds() {
        assert_eq!(ticks_to_ns(2_400_000, 2_400_000), 1_000_000);
        assert_eq!(ticks_to_ns(5, 0), 0);
        assert_eq!(ticks_to_ns(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn multiplying_gives_what_dividing_does() {
        const YEAR_NS: u64 = 365 * 24 * 3600 * 1_000_000_000;
        for khz in [1_000_000, 2_399_998, 5_800_001] {
            for ns in [0, 1, 999_999_999, YEAR_NS] {
                let ticks = (u128::from(ns) * u128::from(khz) / 1_000_000) as u64;
                let (exact, scaled) = (ticks_to_ns(ticks, khz), scale(ticks, ns_per_tick(khz)));
                // In a year it lags by less than a millisecond.
                assert!(
                    exact - scaled <= 1 + ns / 30_000_000_000,
                    "{khz} {ns} {exact} {scaled}"
                );
            }
        }
        assert_eq!(scale(5, ns_per_tick(0)), 0);
    }
}
