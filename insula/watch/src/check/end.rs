//! Panic and oops.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use kimage::running::RunningError;

/// `TAINT_DIE` of include/linux/panic.h: the kernel had an oops.
const TAINT_DIE: u64 = 1 << 7;

/// Reads `panic_cpu`, which is set from the first moment of a panic, and `tainted_mask`.
#[derive(Debug)]
pub(super) struct End;

impl Check for End {
    fn name(&self) -> &'static str {
        "panic and oops"
    }

    fn suits_boot(&self) -> bool {
        true
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let mut found = Vec::new();
        if let Some(processor) = kernel.panicked_processor()? {
            found.push(Finding::new(
                Kind::Panic,
                "kernel",
                format!("it panicked on cpu {processor}"),
            ));
        }
        if kernel.word(kernel.symbol("tainted_mask")?)? & TAINT_DIE != 0 {
            found.push(Finding::new(
                Kind::Oops,
                "kernel",
                "it had an exception of its own; its log says which",
            ));
        }
        Ok(found)
    }
}
