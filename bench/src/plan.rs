//! Number of measurements: boots of the machine, and rounds in each.
//!
//! The placement of a kernel's memory differs from boot to boot, and affects figures as much as
//! anything within one boot does. Hence records come from several boots.

use crate::benchmark::Benchmark;

/// Boots of each benchmark's machine for a record.
const RECORD_BOOTS: u32 = 3;

/// Number of a benchmark's measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Boots of its machine.
    pub boots: u32,
    /// Measurements of each row in each boot.
    pub rounds: u32,
}

impl Plan {
    /// Plan for a record in the repository: all together an hour on two cores.
    #[must_use]
    pub fn record(benchmark: &Benchmark) -> Self {
        Self {
            boots: RECORD_BOOTS,
            rounds: benchmark.rounds,
        }
    }
}
