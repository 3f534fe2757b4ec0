//! How often something is measured: in how many boots of the machine, how often in each.
//!
//! What a kernel has placed where differs from boot to boot, and moves figures as much as anything
//! within one does. Hence what is recorded comes from several boots.

use crate::benchmark::Benchmark;

/// Boots of each benchmark's machine for a record.
const RECORD_BOOTS: u32 = 3;

/// How often a benchmark is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Boots of its machine.
    pub boots: u32,
    /// How often each thing is measured in each of them.
    pub rounds: u32,
}

impl Plan {
    /// For figures that are kept in the repository: together an hour on two cores.
    #[must_use]
    pub fn record(benchmark: &Benchmark) -> Self {
        Self {
            boots: RECORD_BOOTS,
            rounds: benchmark.rounds,
        }
    }
}
