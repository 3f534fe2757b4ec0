//! Waiting for the resources of nodes that are being removed.
//!
//! `insula run --image lwk … -- PROGRAM` ends with the program. Its node then still has to power
//! off, and the base to take back cores and memory. The next such command must not fail for that.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_base::error::{Error, Kind};
use insula_base::root::Root;
use insula_driver::{Driver, Node};

use crate::delegation::ONCE;
use crate::run::start_once;
use crate::stats;
use crate::{Handle, RunRequest, Started, all};

/// Time from the end of a node's last program until its removal.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which that is polled.
const INTERVAL: Duration = Duration::from_millis(5);

/// Starts a node; retries a lack of resources while another node is being removed. `began_tsc` is
/// the time stamp counter at the start of the process. The returned descriptor is that of the
/// node's supervisor.
///
/// # Errors
/// Why it was not started; nothing is left behind, unless the error says that it runs.
pub fn start(
    driver: &Driver,
    root: &Root,
    request: &RunRequest,
    began_tsc: u64,
) -> Result<(Started, Node), Error> {
    let began = Instant::now();
    let mut is_last = false;
    loop {
        is_last |= began.elapsed() > REMOVAL_TIMEOUT;
        match start_once(driver, root, request, began_tsc) {
            // Another node may hold what it needs.
            Err(error) if !is_last && error.kind == Kind::Unavailable => {}
            started => return started,
        }
        // One more attempt after the last removal, which may have happened since this one.
        is_last = !all(driver).is_ok_and(|nodes| nodes.iter().any(is_being_removed));
        if !is_last {
            sleep(INTERVAL);
        }
    }
}

/// Whether a node has no work left and will be removed.
fn is_being_removed(handle: &Handle) -> bool {
    let Some(record) = &handle.record else {
        return false;
    };
    let runs_once = || record.append.split_whitespace().any(|word| word == ONCE);
    match handle.is_stopped() {
        true => handle.is_supervised() && record.restart.policy.removes(handle.info.reason),
        false => record.restart.policy.remove && runs_once() && has_no_processes(handle),
    }
}

fn has_no_processes(handle: &Handle) -> bool {
    stats::processes(handle) == Some(0)
}
