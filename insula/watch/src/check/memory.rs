//! Memory of the watched kernel.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::target::{Kernel, counter};
use kimage::running::RunningError;

/// Pages that can be freed when needed (`enum node_stat_item`).
const RECLAIMABLE: [&str; 3] = [
    "NR_ACTIVE_FILE",
    "NR_INACTIVE_FILE",
    "NR_SLAB_RECLAIMABLE_B",
];

/// Reads the counters of pages.
#[derive(Debug)]
pub(super) struct Memory;

impl Check for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let all = kernel.word(kernel.symbol("_totalram_pages")?)?;
        let mut available = counter(kernel, "vm_zone_stat", "zone_stat_item", "NR_FREE_PAGES")?;
        for name in RECLAIMABLE {
            available = available.saturating_add(node_counter(kernel, name)?);
        }
        let slab = node_counter(kernel, "NR_SLAB_UNRECLAIMABLE_B")?;
        let limits = &round.rules.memory;
        let (available, slab) = (percent(available, all), percent(slab, all));
        let mut found = Vec::new();
        if available < limits.available_min_percent {
            found.push(Finding::new(
                Kind::MemoryExhausted,
                "memory",
                format!("{available:.1} % of it is available"),
            ));
        }
        if slab > limits.slab_max_percent {
            found.push(Finding::new(
                Kind::SlabGrowth,
                "memory",
                format!("{slab:.1} % of it is in the kernel's own objects"),
            ));
        }
        Ok(found)
    }
}

/// A counter of pages of all nodes; for moments it can be below zero.
fn node_counter(kernel: &Kernel<'_>, name: &str) -> Result<u64, RunningError> {
    let value = counter(kernel, "vm_node_stat", "node_stat_item", name)?;
    Ok(value.cast_signed().max(0).cast_unsigned())
}

fn percent(part: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        _ => part as f64 * 100.0 / all as f64,
    }
}
