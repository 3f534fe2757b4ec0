//! Waiting until a node is ready.

use std::slice;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_driver::name::Name;
use insula_driver::{CallError, Driver, Mapping};
use insula_node::{self as node, FindError, Handle, LogError, NodeLog};
use insula_supervisor::{self as supervisor, SpawnError};
use kimage::log::LogReader;

use super::project::Ready;

/// Interval at which a node is checked.
const INTERVAL: Duration = Duration::from_millis(20);

/// Why a node did not become ready.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// It has stopped for good.
    #[error(
        "the node '{name}' has stopped before it was ready ({reason}); it was left as it is\n\
         `insula logs {name}` shows its log"
    )]
    Ended {
        /// The node.
        name: Name,
        /// The exit reason.
        reason: &'static str,
    },
    /// The timeout has passed.
    #[error(
        "the node '{name}' has not logged '{log}' within {} s; it was left running\n\
         `insula logs {name}` shows its log; `timeout_s` sets the limit",
        .timeout.as_secs()
    )]
    Late {
        /// The node.
        name: Name,
        /// The text that would mark it as ready.
        log: String,
        /// The time it had.
        timeout: Duration,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The node is gone.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It has lost its supervisor, and a new one cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// The module failed.
    #[error("the module failed: {0}; the node was left as it is")]
    Call(#[from] CallError),
}

/// Waits until a node is ready: in its present run, or in a later one if its policy restarts it.
/// Returns the time from its start, in nanoseconds.
///
/// # Errors
/// [`ReadyError`].
pub(super) fn wait(driver: &Driver, name: &Name, ready: &Ready) -> Result<u64, ReadyError> {
    let mut handle = node::find(driver, name)?;
    let wait = Wait {
        driver,
        name,
        ready,
        ran_before: Duration::from_nanos(handle.view().ran_ns),
        wait_start: Instant::now(),
    };
    // Each run is read afresh: its kernel may be another one.
    while !wait.is_ready_in_this_run(&mut handle)? {
        handle = node::find(driver, name)?;
    }
    Ok(u64::try_from(wait.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The wait for one node.
struct Wait<'a> {
    driver: &'a Driver,
    name: &'a Name,
    ready: &'a Ready,
    /// How long it had run when the wait started.
    ran_before: Duration,
    wait_start: Instant,
}

impl Wait<'_> {
    /// Time since its start; a restart does not reset it.
    fn elapsed(&self) -> Duration {
        self.ran_before + self.wait_start.elapsed()
    }

    /// Waits until it is ready; false if it was restarted.
    fn is_ready_in_this_run(&self, handle: &mut Handle) -> Result<bool, ReadyError> {
        let start = handle.info.starts;
        let log = NodeLog::open(handle)?;
        let mut reader = None;
        loop {
            // Before the log is read: its last records are then included.
            handle.refresh()?;
            if handle.info.starts != start {
                return Ok(false);
            }
            node::record_crash(handle)?;
            reader = reader.or_else(|| log.locate().map(|placement| log.reader(placement)));
            if let Some(reader) = reader.as_mut().filter(|_| !handle.is_being_restarted()) {
                reader.set_stopped(handle.is_stopped());
                match self.is_logged(&log, reader) {
                    Ok(false) => {}
                    Ok(true) => return Ok(true),
                    Err(error) if is_alive(handle, start)? => return Err(error.into()),
                    // Its memory has just been cleared for the next run.
                    Err(_) => {}
                }
            }
            self.check(handle)?;
            sleep(INTERVAL);
        }
    }

    /// Whether its log since the last check marks it as ready.
    fn is_logged(
        &self,
        log: &NodeLog,
        reader: &mut LogReader<'_, Mapping>,
    ) -> Result<bool, LogError> {
        while let Some(record) = log.next(reader)? {
            if record.text().contains(&self.ready.log) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks whether it may still become ready. One whose supervisor was killed gets a new one,
    /// which restarts it if its policy says so.
    fn check(&self, handle: &Handle) -> Result<(), ReadyError> {
        let name = self.name.clone();
        if handle.is_unsupervised() {
            let failures = supervisor::ensure_supervised(self.driver, slice::from_ref(handle));
            failures.into_iter().next().map_or(Ok(()), Err)?;
        } else if handle.is_stopped() && !handle.may_restart() {
            let reason = handle.view().reason.unwrap_or("stopped");
            return Err(ReadyError::Ended { name, reason });
        }
        if self.elapsed() >= self.ready.timeout {
            let Ready { log, timeout } = self.ready.clone();
            return Err(ReadyError::Late { name, log, timeout });
        }
        Ok(())
    }
}

/// Whether that run still goes on.
fn is_alive(handle: &mut Handle, start: u64) -> Result<bool, CallError> {
    handle.refresh()?;
    Ok(handle.is_running() && handle.info.starts == start)
}

/// Whether the time in which a node must be ready has passed.
pub(super) fn has_timed_out(handle: &Handle, ready: &Ready) -> bool {
    Duration::from_nanos(handle.view().ran_ns) >= ready.timeout
}
