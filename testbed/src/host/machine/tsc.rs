//! Frequency of the time stamp counter, which TCG passes through to the emulated machine.
//!
//! A kernel calibrates it by an emulated timer. On a loaded host that can fail by a factor of
//! eight, and the kernel's clock is then off by as much; so the kernel is given the frequency.

use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_driver::tsc;

/// Long enough for an error of a ten-thousandth.
const MEASURED_FOR: Duration = Duration::from_millis(100);
/// Samples of both clocks, of which the closest pair counts: any may be interrupted.
const SAMPLES: usize = 100;

/// Frequency of the host's counter, in kHz; measured once.
pub fn khz() -> u32 {
    static KHZ: OnceLock<u32> = OnceLock::new();
    *KHZ.get_or_init(measure)
}

fn measure() -> u32 {
    let (from, began) = sample();
    sleep(MEASURED_FOR);
    let (to, ended) = sample();
    let ticks = to.saturating_sub(from) as f64;
    (ticks / (ended - began).as_secs_f64() / 1e3).round() as u32
}

/// Values of both clocks at one moment.
fn sample() -> (u64, Instant) {
    let one = || {
        let (before, now, after) = (tsc(), Instant::now(), tsc());
        (after - before, (before.midpoint(after), now))
    };
    let looks = (0..SAMPLES).map(|_| one());
    let (_, closest) = looks.min_by_key(|(apart, _)| *apart).unwrap_or_else(one);
    closest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measuring_twice_gives_the_same() {
        let (first, second) = (f64::from(measure()), f64::from(measure()));
        assert!(
            (first / second - 1.0).abs() < 1e-3,
            "{first} and {second} kHz"
        );
    }
}
