//! Pauses between attempts.

use std::time::Duration;

/// Before the first attempt that follows a failure.
const MIN: Duration = Duration::from_millis(100);
/// No pause is longer.
const MAX: Duration = Duration::from_secs(30);

/// Pauses, each twice as long as the one before.
#[derive(Debug)]
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Self(MIN)
    }

    /// How long to wait before the next attempt.
    pub(super) fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = MAX.min(now * 2);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        let mut pause = Pause::new();
        let pauses: Vec<_> = (0..12).map(|_| pause.next()).collect();
        assert!(
            pauses
                .windows(2)
                .all(|pair| pair[1] == (pair[0] * 2).min(MAX))
        );
        assert_eq!((pauses[0], pauses[11]), (MIN, MAX));
    }
}
