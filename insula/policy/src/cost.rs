//! What moves cost.

use std::collections::VecDeque;

/// Number of moves that are remembered.
const REMEMBERED: usize = 8;

/// Time that a program stands still when it is moved, by the last moves.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    stopped_ms: VecDeque<f64>,
}

impl Cost {
    /// Learns how long a move has taken, in ms.
    pub fn learn(&mut self, stopped_ms: f64) {
        if self.stopped_ms.len() == REMEMBERED {
            self.stopped_ms.pop_front();
        }
        self.stopped_ms.push_back(stopped_ms);
    }

    /// The time that the next one is expected to take, in ms: the mean, and a standard deviation
    /// more. 0 before the first.
    #[must_use]
    pub fn expected_ms(&self) -> f64 {
        let count = self.stopped_ms.len().max(1) as f64;
        let mean = self.stopped_ms.iter().sum::<f64>() / count;
        let squares = self.stopped_ms.iter().map(|one| (one - mean).powi(2));
        mean + (squares.sum::<f64>() / count).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_that_vary_are_expected_to_take_longer() {
        let of = |all: &[f64]| {
            let mut cost = Cost::default();
            all.iter().for_each(|one| cost.learn(*one));
            cost.expected_ms()
        };
        assert!(of(&[]).abs() < f64::EPSILON);
        assert!((of(&[20.0, 20.0]) - 20.0).abs() < 1e-9);
        assert!((of(&[10.0, 30.0]) - 30.0).abs() < 1e-9);
    }

    #[test]
    fn old_moves_are_forgotten() {
        let mut cost = Cost::default();
        cost.learn(1000.0);
        (0..REMEMBERED).for_each(|_| cost.learn(2.0));
        assert!((cost.expected_ms() - 2.0).abs() < 1e-9);
    }
}
