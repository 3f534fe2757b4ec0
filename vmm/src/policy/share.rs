//! Bound on the time of a core that a lightweight kernel gets which shares it.

/// How much of each period it has had. Times are ticks of the time stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    period: u64,
    budget: u64,
    began: u64,
    spent: u64,
}

impl Budget {
    /// At most `budget` of each `period`.
    #[must_use]
    pub const fn new(period: u64, budget: u64) -> Self {
        Self {
            period,
            budget,
            began: 0,
            spent: 0,
        }
    }

    /// What is left in this period; `None`: it is used up.
    pub fn left(&mut self, now: u64) -> Option<u64> {
        if now.wrapping_sub(self.began) >= self.period {
            (self.began, self.spent) = (now, 0);
        }
        self.budget.checked_sub(self.spent).filter(|&left| left > 0)
    }

    /// Accounts for a run. However long it was, the other kernel then has the core for the rest of a
    /// period.
    pub fn spend(&mut self, began: u64, ended: u64) {
        self.spent = self.spent.saturating_add(ended.wrapping_sub(began));
        if self.spent >= self.budget {
            self.began = ended.wrapping_sub(self.budget);
        }
    }

    /// Length of a period.
    #[must_use]
    pub const fn period(&self) -> u64 {
        self.period
    }

    /// When the next period begins.
    #[must_use]
    pub const fn renewed_at(&self) -> u64 {
        self.began.wrapping_add(self.period)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_budget_is_used_up_and_renewed() {
        let mut budget = Budget::new(100, 90);
        assert_eq!(budget.left(1000), Some(90));
        budget.spend(1000, 1060);
        assert_eq!(budget.left(1070), Some(30));
        budget.spend(1070, 1100);
        assert_eq!((budget.left(1100), budget.renewed_at()), (None, 1110));
        assert_eq!(budget.left(1109), None);
        assert_eq!(budget.left(1110), Some(90));
    }

    #[test]
    fn a_run_that_was_too_long_is_followed_by_the_other_kernels_time() {
        let mut budget = Budget::new(100, 50);
        assert_eq!(budget.left(1000), Some(50));
        budget.spend(1000, 5000);
        assert_eq!((budget.left(5049), budget.left(5050)), (None, Some(50)));
    }

    proptest! {
        #[test]
        fn the_other_kernel_has_its_part_of_the_time(
            share in 1_u64..100, runs in prop::collection::vec((0_u64..200, 0_u64..50), 1..200)
        ) {
            let mut budget = Budget::new(100, share);
            let (mut now, mut spent) = (1 << 20, 0);
            let start = now;
            for (wanted, pause) in runs {
                match budget.left(now) {
                    Some(left) => {
                        let run = wanted.min(left);
                        budget.spend(now, now + run);
                        (now, spent) = (now + run, spent + run);
                    }
                    None => now = budget.renewed_at(),
                }
                now += pause;
            }
            let periods = (now - start) / 100 + 2;
            prop_assert!(spent <= periods * share, "{spent} of {}", now - start);
        }
    }
}
