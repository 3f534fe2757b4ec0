//! Order statistics: medians and deciles describe times better than means, which one stall changes.

/// Summary of a list of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
}

impl Summary {
    /// Summary of one value, without a spread.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self {
            count: 1,
            median: value,
            p10: value,
            p90: value,
        }
    }

    /// Summary of these values; none when there are none, or one of them is no number.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            count: sorted.len(),
            median: quantile(&sorted, 0.5),
            p10: quantile(&sorted, 0.1),
            p90: quantile(&sorted, 0.9),
        })
    }
}

/// Quantile `share` of the sorted values, interpolated between neighbours (type 7 of Hyndman and
/// Fan, the usual one).
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let below = sorted[position.floor() as usize];
    let above = sorted[position.ceil() as usize];
    below + (above - below) * position.fract()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_known_values() {
        let values: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        let summary = Summary::of(&values).unwrap();
        assert_eq!(
            (summary.count, summary.median, summary.p10, summary.p90),
            (11, 5.0, 1.0, 9.0)
        );
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
    }

    #[test]
    fn of_nothing_is_nothing() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    proptest! {
        #[test]
        fn in_order_and_within(values in prop::collection::vec(-1e9_f64..1e9, 1..50)) {
            let summary = Summary::of(&values).unwrap();
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(least <= summary.p10 && summary.p10 <= summary.median);
            prop_assert!(summary.median <= summary.p90 && summary.p90 <= most);
        }
    }
}
