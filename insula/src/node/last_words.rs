//! Finding out that a node has crashed.
//!
//! A kernel that panics with `panic=0` halts and tells nobody; but it marks the core that panics,
//! where we can see it. A node's supervisor looks for that mark and stops the node as crashed; who
//! only shows the node shows the mark.

use std::time::{Duration, Instant};

use insula_abi as abi;
use kimage::log::Placement;

use super::nmi::leave_registers;
use super::{Handle, NodeLog};
use crate::driver::CallError;

/// How long a log must have been quiet for the kernel's last words to be said.
const QUIET: Duration = Duration::from_millis(200);
/// How long we wait for that.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often we look.
const INTERVAL: Duration = Duration::from_millis(20);

/// Stops a running node whose kernel has panicked, after it has said its last words; of one that
/// has asked for a reset (`panic=1`) notes in the handle that a panic was why. A node whose log
/// cannot be read is left alone: nothing is known of it.
///
/// # Errors
/// What the module answered to the stop.
pub fn note_crash(handle: &mut Handle) -> Result<(), CallError> {
    let reset = handle.info.reason == abi::Reason::RESET;
    if !handle.is_running() && !reset {
        return Ok(());
    }
    let Some((log, placement)) = panicked(handle) else {
        return Ok(());
    };
    if !reset {
        wait_until_quiet(&log, placement);
        leave_registers(handle, &log, placement);
        stop_as_crashed(handle)?;
    }
    // It may also have asked while we waited.
    if handle.info.reason == abi::Reason::RESET {
        handle.info.reason = abi::Reason::CRASHED;
    }
    Ok(())
}

/// Notes in the handle that a node's kernel has panicked, if it has. Does nothing to the node.
pub fn see_crash(handle: &mut Handle) {
    let reset = handle.info.reason == abi::Reason::RESET;
    if (handle.is_running() || reset) && panicked(handle).is_some() {
        handle.info.reason = abi::Reason::CRASHED;
    }
}

/// Waits until a kernel that is at its end has logged all that it has to say.
pub fn wait_for_last_words(handle: &Handle) {
    let log = NodeLog::open(handle).ok();
    if let Some((log, placement)) = log.and_then(|log| log.locate().map(|at| (log, at))) {
        wait_until_quiet(&log, placement);
    }
}

/// The log of a node whose kernel has panicked.
fn panicked(handle: &Handle) -> Option<(NodeLog, Placement)> {
    let log = NodeLog::open(handle).ok()?;
    let placement = log.locate()?;
    log.panicked(placement)
        .unwrap_or(false)
        .then_some((log, placement))
}

/// Waits until nothing more is logged.
fn wait_until_quiet(log: &NodeLog, placement: Placement) {
    let began = Instant::now();
    let mut last = Instant::now();
    let mut reader = log.reader(placement);
    while last.elapsed() < QUIET && began.elapsed() < PATIENCE {
        while let Ok(Some(_)) = log.next(&mut reader) {
            last = Instant::now();
            // A kernel that logs for ever would keep us here.
            if began.elapsed() >= PATIENCE {
                return;
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

fn stop_as_crashed(handle: &mut Handle) -> Result<(), CallError> {
    let stopped = handle.node.stop(abi::Reason::CRASHED);
    // Somebody else may have stopped or removed it meanwhile; then the module refuses, and all is
    // well.
    match handle.refresh() {
        Ok(()) if handle.is_running() => stopped,
        _ => Ok(()),
    }
}
