//! The figures, for people's reports and for programs.

use serde::Serialize;

use crate::benchmark::{Benchmark, Peer, Row};
use crate::measured::Measured;
use crate::statistics::Summary;

/// One figure, as `results.json` lists it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Entry {
    /// Its stable id.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// How often it was measured.
    pub n: usize,
    /// Half of the values are below.
    pub median: f64,
    /// One tenth of them is below.
    pub p10: f64,
    /// Nine tenths of them are below.
    pub p90: f64,
    /// What it is compared with: another id, or a paper.
    pub peer: Option<String>,
    /// The peer's median.
    pub peer_median: Option<f64>,
    /// Its median by the peer's.
    pub ratio: Option<f64>,
    /// Whether the machine was emulated.
    pub emulated: bool,
    /// How the measured thing is done by hand.
    pub command: &'static str,
}

/// The figures of a benchmark. Rows that were not measured are left out.
#[must_use]
pub fn entries(benchmark: &Benchmark, measured: &Measured) -> Vec<Entry> {
    let rows = benchmark.rows.iter();
    rows.filter_map(|row| entry(row, measured)).collect()
}

fn entry(row: &Row, measured: &Measured) -> Option<Entry> {
    let summary = |id: &str| Summary::of(measured.samples.get(id)?);
    let Summary {
        count,
        median,
        p10,
        p90,
    } = summary(row.id)?;
    let (peer, peer_median) = match row.peer {
        Peer::None => (None, None),
        Peer::Mint(figure) => (Some("Mint (i7-4770)".to_owned()), Some(figure)),
        Peer::Row(id) => (Some(id.to_owned()), summary(id).map(|peer| peer.median)),
    };
    let ratio = peer_median
        .filter(|&peer| peer > 0.0)
        .map(|peer| median / peer);
    Some(Entry {
        id: row.id,
        what: row.what,
        unit: row.unit.name(),
        n: count,
        median,
        p10,
        p90,
        peer,
        peer_median,
        ratio,
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
            &[("cycle.base", &[2.0, 2.0, 4.0]), ("cycle.pool", &[1.0])],
        );
        let entries = entries(benchmark::find("cycle").unwrap(), &measured);
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].n, entries[0].ratio), (3, None));
        assert_eq!(entries[1].peer.as_deref(), Some("cycle.base"));
        assert_eq!(
            (entries[1].peer_median, entries[1].ratio),
            (Some(2.0), Some(0.5))
        );
    }

    #[test]
    fn a_missing_peer_gives_no_ratio() {
        let measured = fake::measured("cycle", &[("cycle.pool", &[1.0])]);
        let entries = entries(benchmark::find("cycle").unwrap(), &measured);
        assert_eq!((entries[0].peer_median, entries[0].ratio), (None, None));
    }
}
