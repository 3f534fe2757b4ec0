//! Waiting until a node is ready.

use std::slice;
use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_driver::name::Name;
use insula_driver::{CallError, Driver, Mapping};
use insula_node::{self as node, Handle, NodeLog};
use insula_supervisor as supervisor;
use kimage::log::LogReader;

use insula_node::spec::Ready;

/// Interval at which a node is checked.
const INTERVAL: Duration = Duration::from_millis(20);

/// Waits until a node is ready: in its present run, or in a later one if its policy restarts it.
/// Returns the time from its start, in nanoseconds.
///
/// # Errors
/// Why it did not become ready.
pub(super) fn wait(driver: &Driver, name: &Name, ready: &Ready) -> Result<u64, Error> {
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
    fn is_ready_in_this_run(&self, handle: &mut Handle) -> Result<bool, Error> {
        let start = handle.info.starts;
        let log = NodeLog::open(handle)?;
        let mut reader = None;
        loop {
            // Before the log is read: its last records are then included.
            handle.refresh().map_err(module_failed)?;
            if handle.info.starts != start {
                return Ok(false);
            }
            node::record_crash(handle).map_err(module_failed)?;
            reader = reader.or_else(|| log.locate().map(|placement| log.reader(placement)));
            if let Some(reader) = reader.as_mut().filter(|_| !handle.is_being_restarted()) {
                reader.set_stopped(handle.is_stopped());
                match self.is_logged(&log, reader) {
                    Ok(false) => {}
                    Ok(true) => return Ok(true),
                    Err(error) if is_alive(handle, start)? => return Err(error),
                    // Its memory has just been cleared for the next run.
                    Err(_) => {}
                }
            }
            self.check(handle)?;
            sleep(INTERVAL);
        }
    }

    /// Whether its log since the last check marks it as ready.
    fn is_logged(&self, log: &NodeLog, reader: &mut LogReader<'_, Mapping>) -> Result<bool, Error> {
        while let Some(record) = log.next(reader)? {
            if record.text().contains(&self.ready.log) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks whether it may still become ready. One whose supervisor was killed gets a new one,
    /// which restarts it if its policy says so.
    fn check(&self, handle: &Handle) -> Result<(), Error> {
        if handle.is_unsupervised() {
            let failures = supervisor::ensure_supervised(self.driver, slice::from_ref(handle));
            failures.into_iter().next().map_or(Ok(()), Err)?;
        } else if handle.is_stopped() && !handle.may_restart() {
            let reason = handle.view().reason.unwrap_or("stopped");
            return Err(self.ended(reason));
        }
        if self.elapsed() >= self.ready.timeout() {
            return Err(self.late());
        }
        Ok(())
    }

    fn ended(&self, reason: &str) -> Error {
        let name = self.name;
        Error::new(format!(
            "the node '{name}' has stopped before it was ready ({reason})"
        ))
        .unchanged()
        .hint(format!("`insula logs {name}` shows its log"))
    }

    fn late(&self) -> Error {
        let (name, Ready { log, timeout_s }) = (self.name, self.ready);
        Error::new(format!(
            "the node '{name}' has not logged '{log}' within {timeout_s} s"
        ))
        .leaving("it was left running")
        .hint(format!(
            "`insula logs {name}` shows its log; `timeout_s` sets the limit"
        ))
    }
}

fn module_failed(error: CallError) -> Error {
    Error::new("the module failed")
        .because(error)
        .leaving("the node was left as it is")
}

/// Whether that run still goes on.
fn is_alive(handle: &mut Handle, start: u64) -> Result<bool, Error> {
    handle.refresh().map_err(module_failed)?;
    Ok(handle.is_running() && handle.info.starts == start)
}

/// Whether the time in which a node must be ready has passed.
pub(super) fn has_timed_out(handle: &Handle, ready: &Ready) -> bool {
    Duration::from_nanos(handle.view().ran_ns) >= ready.timeout()
}
