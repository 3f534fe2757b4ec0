//! The order in which things were used, roughly.
//!
//! What is used again soon after its last use keeps its place: that is nearly free, and moves it past few others.

use std::collections::BTreeMap;

/// Keys by their last use.
#[derive(Debug, Default)]
pub(crate) struct Recency {
    by_age: BTreeMap<u64, u64>,
    clock: u64,
}

/// When a key was used last; 0 for one that is in no order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used(u64);

impl Recency {
    /// Notes a use of a key, which has `used` as its last one.
    pub(crate) fn touch(&mut self, key: u64, used: &mut Used) {
        // A quarter of all others at most were used since.
        if used.0 != 0 && self.clock - used.0 <= self.by_age.len() as u64 / 4 {
            return;
        }
        self.leave(used);
        self.clock += 1;
        used.0 = self.clock;
        self.by_age.insert(self.clock, key);
    }

    /// Takes a key out of the order.
    pub(crate) fn leave(&mut self, used: &mut Used) {
        if used.0 != 0 {
            self.by_age.remove(&used.0);
            used.0 = 0;
        }
    }

    /// Takes out the key whose last use is the longest ago, roughly.
    pub(crate) fn pop_oldest(&mut self) -> Option<u64> {
        self.by_age.pop_first().map(|(_, key)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_what_is_used_stays() {
        let mut recency = Recency::default();
        let mut used = [Used::default(); 8];
        for (key, used) in (0..).zip(&mut used) {
            recency.touch(key, used);
        }
        // The last is young enough, the first is not.
        recency.touch(7, &mut used[7]);
        recency.touch(0, &mut used[0]);
        recency.leave(&mut used[2]);
        assert_eq!(used[2], Used::default());
        let order: Vec<_> = std::iter::from_fn(|| recency.pop_oldest()).collect();
        assert_eq!(order, [1, 3, 4, 5, 6, 7, 0]);
    }
}
