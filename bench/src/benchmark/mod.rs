//! The benchmarks: what each measures, on which machine, beside which peer.
//!
//! To add one: write `NAME.rs` here with a `pub(super) const BENCHMARK` and add it to the list
//! below.

mod boot_options;
mod channel_bulk;
mod cycle;
mod delegated_read;
mod device;
mod displaced_lines;
mod doorbell;
mod ending;
mod exec;
mod fs;
mod ipi;
mod load_forms;
mod lwk_program;
mod lwk_start;
mod mint_load;
mod mint_start;
mod neighbour;
mod net;
mod node_boot;
mod node_many;
mod noise;
mod null_call;
mod run_to_output;

use testbed::root::Root;
use testbed::scenario::{Finding, Shape};

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
    &doorbell::BENCHMARK,
    &channel_bulk::BENCHMARK,
    &ending::BENCHMARK,
    &noise::BENCHMARK,
    &null_call::BENCHMARK,
    &displaced_lines::BENCHMARK,
    &delegated_read::BENCHMARK,
    &lwk_start::BENCHMARK,
    &lwk_program::BENCHMARK,
    &exec::BENCHMARK,
    &run_to_output::BENCHMARK,
    &fs::BENCHMARK,
    &net::BENCHMARK,
];

/// Measures with what there is at a place.
pub type Play<Place> = fn(&Place) -> Result<(), Finding>;

/// What is to be made of the counts of programs between [marks](crate::marks).
pub struct Counted {
    /// Whether accesses to memory are looked at, which takes long.
    pub lines: bool,
    /// Values by the ids of rows.
    pub samples: fn(&[Count]) -> Vec<(&'static str, f64)>,
}

/// Something that is measured as a whole.
pub struct Benchmark {
    /// What it is called.
    pub name: &'static str,
    /// Its heading in the report.
    pub title: &'static str,
    /// How it is measured and what to mind, as a paragraph of Markdown.
    pub how: &'static str,
    /// The machine that it takes.
    pub machine: Shape,
    /// That machine's root disk.
    pub root: Root,
    /// How often each thing is measured in each boot for a record: less of what takes long, so
    /// that all of them can be recorded in an hour.
    pub rounds: u32,
    /// Measures inside the machine.
    pub inside: Play<Inside>,
    /// Measures peers that run beside the machine, not in it, while it is off.
    pub outside: Option<Play<Outside>>,
    /// What the emulator counts of what is executed inside.
    pub counted: Option<Counted>,
    /// What comes of it.
    pub rows: &'static [Row],
}

/// One figure.
pub struct Row {
    /// Its stable id.
    pub id: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// What it is compared with.
    pub peer: Peer,
    /// What it shall be at most.
    pub goal: Option<f64>,
    /// How the measured thing is done by hand.
    pub command: &'static str,
    /// Whether it is drawn.
    pub drawn: bool,
}

impl Row {
    /// A time in milliseconds without a peer, not drawn.
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

    /// The share that one time has of another, each round's by itself; beside the paper's, with
    /// the most that it shall be.
    #[must_use]
    pub const fn share(id: &'static str, what: &'static str, paper: f64, goal: f64) -> Self {
        Self {
            unit: Unit::Share,
            peer: Peer::Mint(paper),
            goal: Some(goal),
            ..Self::time(id, what, "")
        }
    }

    /// The same, beside another row.
    #[must_use]
    pub const fn beside(self, id: &'static str) -> Self {
        Self {
            peer: Peer::Row(id),
            ..self
        }
    }

    /// The same, beside a figure of the Mint paper.
    #[must_use]
    pub const fn mint(self, figure: f64) -> Self {
        Self {
            peer: Peer::Mint(figure),
            ..self
        }
    }

    /// The same, which shall be so much at most.
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

    /// The same, drawn.
    #[must_use]
    pub const fn drawn(self) -> Self {
        Self {
            drawn: true,
            ..self
        }
    }
}

/// A row's unit.
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
    /// How often.
    Count,
}

impl Unit {
    /// As it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Microseconds => "µs",
            Self::Seconds => "s",
            Self::MegabytesPerSecond => "MB/s",
            Self::Share | Self::Count => "1",
        }
    }
}

/// What a row is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peer {
    /// Nothing.
    None,
    /// The Mint paper's figure, in the row's unit: measured on an i7-4770, hence to be read for
    /// its proportions only.
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
