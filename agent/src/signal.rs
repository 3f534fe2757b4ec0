//! Signals by their numbers.

#![allow(unsafe_code, reason = "rustix names no real-time signals")]

use rustix::process::Signal;

/// Real-time signals that programs have, without the two of the C library (signal(7)).
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// The signal of that number, as x86 and arm64 kernels have them.
pub(crate) fn by_number(number: i32) -> Option<Signal> {
    let real_time = REAL_TIME.contains(&number).then(|| {
        // SAFETY: it is a number of a signal, and none of those that the C library has for itself.
        unsafe { Signal::from_raw_unchecked(number) }
    });
    Signal::from_named_raw(number).or(real_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel() {
        for number in [1, 15, 20, 31, 34, 64] {
            assert_eq!(by_number(number).map(Signal::as_raw), Some(number));
        }
        for number in [-1, 0, 32, 33, 65] {
            assert_eq!(by_number(number), None);
        }
    }
}
