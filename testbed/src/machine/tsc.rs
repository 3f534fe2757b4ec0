//! The frequency of the time stamp counter, which TCG hands through to what it
//! emulates.
//!
//! A kernel finds it out by an emulated timer. On a loaded host that can fail by a
//! factor of eight, and the kernel's clock then runs as much too fast; so it is told.

use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula::driver::tsc;

/// Long enough for a ten-thousandth.
const MEASURED_FOR: Duration = Duration::from_millis(100);
/// Looks at both clocks, of which the closest pair counts: any may be interrupted.
const LOOKS: usize = 100;

/// The frequency of this machine's counter, in kHz; measured once.
pub fn khz() -> u32 {
    static KHZ: OnceLock<u32> = OnceLock::new();
    *KHZ.get_or_init(measure)
}

fn measure() -> u32 {
    let (from, began) = look();
    sleep(MEASURED_FOR);
    let (to, ended) = look();
    let ticks = to.saturating_sub(from) as f64;
    (ticks / (ended - began).as_secs_f64() / 1e3).round() as u32
}

/// Both clocks at one moment.
fn look() -> (u64, Instant) {
    let one = || {
        let (before, now, after) = (tsc(), Instant::now(), tsc());
        (after - before, (before.midpoint(after), now))
    };
    let looks = (0..LOOKS).map(|_| one());
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
