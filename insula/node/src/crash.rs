//! Detecting that a node has crashed.
//!
//! A kernel that panics with `panic=0` halts without notice, but sets `panic_cpu`, which is read
//! from its memory. A node's supervisor polls it and stops the node as crashed; commands that show
//! the node only show it as crashed.

use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_driver::CallError;
use kimage::log::Placement;

use super::nmi::save_registers;
use super::{Handle, NodeLog};

/// Time without new log lines after which a log is complete.
const QUIET: Duration = Duration::from_millis(200);
/// Timeout of that wait.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(20);

/// Stops a running node whose kernel has panicked, once its log is complete. If a node asked for a
/// reset (`panic=1`), changes the reason in the handle to a crash. A node whose log cannot be read
/// is left alone.
///
/// # Errors
/// The module's error.
pub fn record_crash(handle: &mut Handle) -> Result<(), CallError> {
    let reset = handle.info.reason == abi::Reason::RESET;
    if !handle.is_running() && !reset {
        return Ok(());
    }
    let Some((log, placement)) = panicked(handle) else {
        return Ok(());
    };
    if !reset {
        wait_until_quiet(&log, placement);
        save_registers(handle, &log, placement);
        stop_as_crashed(handle)?;
    }
    // It may have asked for a reset during the wait.
    if handle.info.reason == abi::Reason::RESET {
        handle.info.reason = abi::Reason::CRASHED;
    }
    Ok(())
}

/// Sets the reason in the handle if the node's kernel has panicked. Does not touch the node.
pub fn detect_crash(handle: &mut Handle) {
    let reset = handle.info.reason == abi::Reason::RESET;
    if (handle.is_running() || reset) && panicked(handle).is_some() {
        handle.info.reason = abi::Reason::CRASHED;
    }
}

/// Waits until the log of a kernel that halts is complete.
pub fn wait_for_last_lines(handle: &Handle) {
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
    while last.elapsed() < QUIET && began.elapsed() < TIMEOUT {
        while let Ok(Some(_)) = log.next(&mut reader) {
            last = Instant::now();
            // A kernel may log forever.
            if began.elapsed() >= TIMEOUT {
                return;
            }
        }
        std::thread::sleep(INTERVAL);
    }
}

fn stop_as_crashed(handle: &mut Handle) -> Result<(), CallError> {
    let stopped = handle.node.stop(abi::Reason::CRASHED);
    // An error is fine if another process has stopped or removed it meanwhile.
    match handle.refresh() {
        Ok(()) if handle.is_running() => stopped,
        _ => Ok(()),
    }
}
