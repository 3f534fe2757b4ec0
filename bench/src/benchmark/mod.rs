//! Benchmarks: measurements, with machine and peers.
//!
//! To add one: write `NAME.rs` here with a `pub(super) const BENCHMARK` and add it to the list
//! below.

mod ant;
mod boot_options;
mod call_path;
mod channel_bulk;
mod clone;
mod colocation;
mod cycle;
mod delegated_read;
mod device;
mod displaced_lines;
mod doorbell;
mod ending;
mod exec;
mod fs;
mod ipi;
mod isolation;
mod load_forms;
mod lwk_program;
mod lwk_start;
mod mint_load;
mod mint_start;
mod moved;
mod neighbour;
mod net;
mod node_boot;
mod node_many;
mod noise;
mod null_call;
mod oci;
mod overload;
mod run_to_output;
mod server;
mod start_path;

use testbed::base::{Finding, Shape};
use testbed::host::root::Root;

use crate::inside::Inside;
use crate::marks::Count;
use crate::outside::Outside;

/// All benchmarks, in the order in which they are measured and reported.
pub const ALL: &[&Benchmark] = &[
    &mint_load::BENCHMARK,
    &mint_start::BENCHMARK,
    &load_forms::BENCHMARK,
    &node_boot::BENCHMARK,
    &boot_options::BENCHMARK,
    &node_many::BENCHMARK,
    &cycle::BENCHMARK,
    &neighbour::BENCHMARK,
    &device::BENCHMARK,
    &ipi::BENCHMARK,
    &isolation::BENCHMARK,
    &clone::BENCHMARK,
    &colocation::BENCHMARK,
    &colocation::PATH,
    &doorbell::BENCHMARK,
    &channel_bulk::BENCHMARK,
    &ending::BENCHMARK,
    &noise::BENCHMARK,
    &null_call::BENCHMARK,
    &call_path::BENCHMARK,
    &displaced_lines::BENCHMARK,
    &delegated_read::BENCHMARK,
    &lwk_start::BENCHMARK,
    &start_path::BENCHMARK,
    &lwk_program::BENCHMARK,
    &server::BENCHMARK,
    &ant::READ,
    &ant::DATA,
    &ant::PATH,
    &ant::BONNIE,
    &ant::BONNIE_PLUS,
    &ant::POSTMARK,
    &ant::NET,
    &exec::BENCHMARK,
    &run_to_output::BENCHMARK,
    &oci::BENCHMARK,
    &fs::BENCHMARK,
    &net::BENCHMARK,
    &moved::BENCHMARK,
    &overload::BENCHMARK,
];

/// Measures with the means of a place.
pub type Play<Place> = fn(&Place) -> Result<(), Finding>;

/// Evaluation of the counts between [marks](crate::marks).
pub struct Counted {
    /// Whether memory accesses are recorded, which is slow.
    pub lines: bool,
    /// The core of which paths from a program into the lightweight kernel are counted, until it handles a doorbell.
    pub path_core: Option<usize>,
    /// Computes values by the ids of rows.
    pub samples: fn(&[Count]) -> Vec<(&'static str, f64)>,
}

/// A benchmark.
pub struct Benchmark {
    /// Its name.
    pub name: &'static str,
    /// Its heading in the report.
    pub title: &'static str,
    /// How it is measured and what limits the result, as a paragraph of Markdown.
    pub how: &'static str,
    /// Machine that it needs.
    pub machine: Shape,
    /// That machine's root disk.
    pub root: Root,
    /// Measurements of each row in each boot for a record: fewer of slow ones, so that all of them
    /// can be recorded in an hour.
    pub rounds: u32,
    /// Measures inside the machine.
    pub inside: Play<Inside>,
    /// Measures peers on the host while the machine is off.
    pub outside: Option<Play<Outside>>,
    /// Counts of the emulator to evaluate.
    pub counted: Option<Counted>,
    /// What its chart shows second by second, if not the drawn rows: failures, or the like.
    pub series: &'static [Series],
    /// Its figures.
    pub rows: &'static [Row],
}

/// Values of successive seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Series {
    /// Id by which they are recorded, in their order; it is that of no row.
    pub id: &'static str,
    /// Its description.
    pub what: &'static str,
}

/// A figure.
pub struct Row {
    /// Its stable id.
    pub id: &'static str,
    /// Its description.
    pub what: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// Peer that it is compared with.
    pub peer: Peer,
    /// Largest value that meets the goal.
    pub goal: Option<f64>,
    /// Command that does the same by hand.
    pub command: &'static str,
    /// Whether it is in the chart.
    pub drawn: bool,
}

impl Row {
    /// A time in milliseconds without a peer, not in the chart.
    #[must_use]
    pub const fn time(id: &'static str, what: &'static str, command: &'static str) -> Self {
        Self {
            id,
            what,
            unit: Unit::Milliseconds,
            peer: Peer::None,
            goal: None,
            command,
            drawn: false,
        }
    }

    /// Ratio of two times of the same round; compared with the paper's, with the largest value that
    /// meets the goal.
    #[must_use]
    pub const fn share(id: &'static str, what: &'static str, paper: f64, goal: f64) -> Self {
        Self {
            unit: Unit::Share,
            peer: Peer::Mint(paper),
            goal: Some(goal),
            ..Self::time(id, what, "")
        }
    }

    /// The same, compared with another row.
    #[must_use]
    pub const fn beside(self, id: &'static str) -> Self {
        Self {
            peer: Peer::Row(id),
            ..self
        }
    }

    /// The same, compared with a figure of the Mint paper.
    #[must_use]
    pub const fn mint(self, figure: f64) -> Self {
        Self {
            peer: Peer::Mint(figure),
            ..self
        }
    }

    /// The same, with the largest value that meets the goal.
    #[must_use]
    pub const fn goal(self, most: f64) -> Self {
        Self {
            goal: Some(most),
            ..self
        }
    }

    /// The same in another unit.
    #[must_use]
    pub const fn unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// The same, in the chart.
    #[must_use]
    pub const fn drawn(self) -> Self {
        Self {
            drawn: true,
            ..self
        }
    }
}

/// Unit of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// ms.
    Milliseconds,
    /// µs.
    Microseconds,
    /// s.
    Seconds,
    /// MB/s, of 10^6 bytes.
    MegabytesPerSecond,
    /// A ratio of two times.
    Share,
    /// KiB.
    Kibibytes,
    /// A number of events.
    Count,
    /// Cycles of the time stamp counter.
    Cycles,
}

impl Unit {
    /// Its symbol.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::Seconds => "s",
            Self::MegabytesPerSecond => "MB/s",
            Self::Kibibytes => "KiB",
            Self::Cycles => "cycles",
            Self::Share | Self::Count => "1",
        }
    }
}

/// Peer of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peer {
    /// Nothing.
    None,
    /// Figure of the Mint paper, in the row's unit: measured on an i7-4770, so that only its
    /// proportions can be compared.
    Mint(f64),
    /// Another row, measured in the same run.
    Row(&'static str),
}

/// The benchmark of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Benchmark> {
    ALL.iter().copied().find(|benchmark| benchmark.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_begin_with_the_benchmark() {
        let mut seen = BTreeSet::new();
        for benchmark in ALL {
            for row in benchmark.rows {
                assert!(seen.insert(row.id), "{}", row.id);
                let rest = row.id.strip_prefix(benchmark.name);
                assert!(rest.is_some_and(|rest| rest.starts_with('.')), "{}", row.id);
            }
        }
    }

    #[test]
    fn peers_exist_in_the_same_benchmark_and_unit() {
        for benchmark in ALL {
            for row in benchmark.rows {
                if let Peer::Row(id) = row.peer {
                    let peer = benchmark.rows.iter().find(|other| other.id == id);
                    assert!(peer.is_some_and(|peer| peer.unit == row.unit), "{id}");
                }
            }
        }
    }
}
