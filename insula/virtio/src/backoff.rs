//! Exponential backoff between attempts.

use std::time::Duration;

/// Backoff after the first failure.
const MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const MAX: Duration = Duration::from_secs(30);

/// The next pause; each is twice as long as the one before.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Backoff {
    pub(super) fn new() -> Self {
        Self(MIN)
    }

    /// The pause before the next attempt.
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
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
        assert!(
            pauses
                .windows(2)
                .all(|pair| pair[1] == (pair[0] * 2).min(MAX))
        );
        assert_eq!((pauses[0], pauses[11]), (MIN, MAX));
    }
}
