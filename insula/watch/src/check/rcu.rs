//! Grace periods of RCU.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::target::Since;
use kimage::running::RunningError;

/// The part of `gp_seq` that is not zero during a grace period (`RCU_SEQ_STATE_MASK`).
const STATE_MASK: u64 = 3;

/// Watches the number of the grace period, which changes when it ends.
#[derive(Debug, Default)]
pub(super) struct Rcu {
    period: Option<Since<u64>>,
}

impl Check for Rcu {
    fn name(&self) -> &'static str {
        "rcu"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let state = round.target.kernel.global("rcu_state", "rcu_state")?;
        let number = state.number("gp_seq")?;
        let period = self
            .period
            .get_or_insert_with(|| Since::new(number, round.now));
        let lasts = period.update(number, round.now);
        let stalled = number & STATE_MASK != 0 && lasts >= round.rules.limits.rcu_stall_s;
        Ok(stalled
            .then(|| {
                Finding::new(
                    Kind::RcuStall,
                    "kernel",
                    format!("a grace period lasts for {} s", lasts.as_secs()),
                )
            })
            .into_iter()
            .collect())
    }
}
