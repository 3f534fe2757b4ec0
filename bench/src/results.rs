//! Figures, for readers and for programs.

use serde::Serialize;

use crate::benchmark::{Benchmark, Peer, Row};
use crate::measured::Measured;
use crate::statistics::Summary;

/// A figure, as listed in `results.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its stable id.
    pub id: &'static str,
    /// Its description.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Number of measurements.
    pub n: usize,
    /// Median.
    pub median: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Peer: another id, or a paper.
    pub peer: Option<String>,
    /// The peer's median.
    pub peer_median: Option<f64>,
    /// Ratio to the peer's figure, if both are known.
    pub ratio: Option<Ratio>,
    /// Whether the machine was emulated.
    pub emulated: bool,
    /// Command that does the same by hand.
    pub command: &'static str,
}

/// Fewest values that show a spread.
const COUNT_MIN: usize = 3;

/// Ratio of a figure to its peer's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Ratio of the medians.
    pub of_medians: f64,
    /// Ratio of the 10th percentile to the peer's 90th.
    pub low: f64,
    /// Ratio of the 90th percentile to the peer's 10th.
    pub high: f64,
}

impl Ratio {
    /// Ratio of two summaries; none if either median is zero: 0 of 0 events says no more than 0 of
    /// 1.
    fn of(own: &Summary, peer: &Summary) -> Option<Self> {
        let is_known = own.median > 0.0 && peer.p10 > 0.0;
        is_known.then(|| Self {
            of_medians: own.median / peer.median,
            low: own.p10 / peer.p90,
            high: own.p90 / peer.p10,
        })
    }

    /// Whether the two differ by more than their spread.
    #[must_use]
    pub fn is_difference(&self) -> bool {
        self.high < 1.0 || self.low > 1.0
    }
}

/// Figures of a benchmark. Rows that were not measured are left out.
#[must_use]
pub fn entries(benchmark: &Benchmark, measured: &Measured) -> Vec<Entry> {
    let rows = benchmark.rows.iter();
    rows.filter_map(|row| entry(row, measured)).collect()
}

fn entry(row: &Row, measured: &Measured) -> Option<Entry> {
    let summary = |id: &str| Summary::of(&measured.values(id));
    let own = summary(row.id)?;
    let (peer, peer_summary) = match row.peer {
        Peer::None => (None, None),
        Peer::Mint(figure) => (
            Some("Mint (i7-4770)".to_owned()),
            Some(Summary::exact(figure)),
        ),
        Peer::Row(id) => (Some(id.to_owned()), summary(id)),
    };
    let enough = own.count >= COUNT_MIN;
    Some(Entry {
        id: row.id,
        what: row.what,
        unit: row.unit.name(),
        n: own.count,
        median: own.median,
        p10: own.p10,
        p90: own.p90,
        peer,
        peer_median: peer_summary.map(|peer| peer.median),
        ratio: peer_summary
            .filter(|_| enough)
            .and_then(|peer| Ratio::of(&own, &peer)),
        emulated: measured.circumstances.emulated,
        command: row.command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark;
    use crate::measured::fake;

    #[test]
    fn ratios_are_to_the_peer_of_the_same_run() {
        let measured = fake::measured(
            "cycle",
            &[("cycle.base", &[2.0, 2.0, 4.0]), ("cycle.pool", &[1.0; 3])],
        );
        let entries = entries(benchmark::find("cycle").unwrap(), &measured);
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].n, entries[0].ratio), (3, None));
        assert_eq!(entries[1].peer.as_deref(), Some("cycle.base"));
        let ratio = entries[1].ratio.unwrap();
        assert_eq!((entries[1].peer_median, ratio.of_medians), (Some(2.0), 0.5));
        // The peer's 10th and 90th percentiles are 2.0 and 3.6.
        assert!((ratio.low - 1.0 / 3.6).abs() < 1e-9 && ratio.high == 0.5);
        assert!(ratio.is_difference());
    }

    #[test]
    fn two_values_give_no_ratio() {
        let samples: [(&str, &[f64]); 2] = [("cycle.base", &[2.0; 3]), ("cycle.pool", &[1.0; 2])];
        let measured = fake::measured("cycle", &samples);
        let entries = entries(benchmark::find("cycle").unwrap(), &measured);
        assert_eq!(entries[1].ratio, None);
    }

    #[test]
    fn overlapping_spreads_do_not_differ() {
        let samples: [(&str, &[f64]); 2] = [
            ("cycle.base", &[1.0, 1.2, 1.4]),
            ("cycle.pool", &[0.9, 0.9, 1.3]),
        ];
        let measured = fake::measured("cycle", &samples);
        let entries = entries(benchmark::find("cycle").unwrap(), &measured);
        let ratio = entries[1].ratio.unwrap();
        assert!(ratio.of_medians < 0.8 && !ratio.is_difference());
    }

    #[test]
    fn zero_has_no_ratio() {
        let benchmark = benchmark::find("cycle").unwrap();
        for (base, pool) in [
            ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
            ([1.0; 3], [0.0; 3]),
            ([0.0; 3], [1.0; 3]),
        ] {
            let measured = fake::measured("cycle", &[("cycle.base", &base), ("cycle.pool", &pool)]);
            assert_eq!(entries(benchmark, &measured)[1].ratio, None);
        }
    }

    #[test]
    fn a_missing_peer_gives_no_ratio() {
        let measured = fake::measured("cycle", &[("cycle.pool", &[1.0])]);
        let entries = entries(benchmark::find("cycle").unwrap(), &measured);
        assert_eq!((entries[0].peer_median, entries[0].ratio), (None, None));
    }
}
