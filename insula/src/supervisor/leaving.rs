//! Nodes that are about to be removed: who needs what they have had waits for them.
//!
//! `insula run --image lwk … -- PROGRAM` ends with the program. Its node needs a moment more to
//! switch itself off, and the base one to have cores and memory back. The next such command is not
//! to fail for that.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::driver::{Driver, Node};
use crate::node::{self, Handle, RunError, RunRequest, Started};
use crate::program::ONCE;
use crate::root::Root;
use crate::stats;

/// How long a node may take from the end of its last program until it is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether it is.
const INTERVAL: Duration = Duration::from_millis(5);

/// Starts a node as [`node::start`] does; if what it needs cannot be had, anew for as long as
/// another node is leaving.
pub(super) fn start_after_leaving(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<(Started, Node), RunError> {
    let began = Instant::now();
    let mut is_last = false;
    loop {
        is_last |= began.elapsed() > PATIENCE;
        match node::start(driver, root, request, began_tsc) {
            Err(error) if !is_last && lacks_something(&error) => {}
            started => return started,
        }
        // Once more after the last has left: it may have done so since the attempt.
        is_last = !node::all(driver).is_ok_and(|nodes| nodes.iter().any(is_leaving));
        if !is_last {
            sleep(INTERVAL);
        }
    }
}

/// Whether it failed for want of something that another node may have.
fn lacks_something(error: &RunError) -> bool {
    matches!(
        error,
        RunError::NameTaken(_)
            | RunError::Cores(_)
            | RunError::Memory(_)
            | RunError::Device(_)
            | RunError::Claim(_)
            | RunError::Contended
    )
}

/// Whether a node is to be removed, and has nothing to do any more.
fn is_leaving(handle: &Handle) -> bool {
    let Some(record) = &handle.record else {
        return false;
    };
    let is_once = || record.append.split_whitespace().any(|word| word == ONCE);
    match handle.is_stopped() {
        true => handle.is_supervised() && record.life.policy.removes(handle.info.reason),
        false => record.life.policy.remove && is_once() && runs_nothing(handle),
    }
}

fn runs_nothing(handle: &Handle) -> bool {
    let programs = stats::of(handle).ok().and_then(|stats| stats.programs);
    programs.is_some_and(|programs| programs.processes == 0)
}
