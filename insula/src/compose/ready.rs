//! Waiting until a node is ready.

use std::slice;
use std::thread::sleep;
use std::time::{Duration, Instant};

use kimage::log::LogReader;

use super::project::Ready;
use crate::driver::{CallError, Driver, Mapping};
use crate::name::Name;
use crate::node::{self, FindError, Handle, LogError, NodeLog};
use crate::supervisor::{self, HandOverError};

/// How often a node is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Why a node is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// It has ended for good.
    #[error(
        "the node '{name}' has ended before it was ready ({reason}); it was left as it is\n\
         `insula logs {name}` shows what it said"
    )]
    Ended {
        /// The node.
        name: Name,
        /// Why it has.
        reason: &'static str,
    },
    /// It has taken too long.
    #[error(
        "the node '{name}' has not logged '{log}' within {} s; it was left running\n\
         `insula logs {name}` shows what it said; give it more time with `timeout_s`",
        .timeout.as_secs()
    )]
    Late {
        /// The node.
        name: Name,
        /// What would have told that it is ready.
        log: String,
        /// How long it may have taken.
        timeout: Duration,
    },
    /// Its log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// It is gone.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It has lost its supervisor, and can have no other.
    #[error(transparent)]
    HandOver(#[from] HandOverError),
    /// The module failed.
    #[error("the module failed: {0}; the node was left as it is")]
    Call(#[from] CallError),
}

/// Waits until a node is ready: in the life that it lives, or in a later one to which its policy
/// brings it. Answers how long after its start that was seen, in nanoseconds.
///
/// # Errors
/// [`ReadyError`].
pub(super) fn wait(driver: &Driver, name: &Name, ready: &Ready) -> Result<u64, ReadyError> {
    let mut handle = node::find(driver, name)?;
    let wait = Wait {
        driver,
        name,
        ready,
        had: Duration::from_nanos(handle.view().ran_ns),
        began: Instant::now(),
    };
    // Each life is looked at anew: its kernel may be another one.
    while !wait.is_ready_in_this_life(&mut handle)? {
        handle = node::find(driver, name)?;
    }
    Ok(u64::try_from(wait.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Waiting for one node.
struct Wait<'a> {
    driver: &'a Driver,
    name: &'a Name,
    ready: &'a Ready,
    /// How long it had run when this began.
    had: Duration,
    began: Instant,
}

impl Wait<'_> {
    /// Time since its start; to be started again does not begin it anew.
    fn elapsed(&self) -> Duration {
        self.had + self.began.elapsed()
    }

    /// Waits until it is ready, or is started again.
    fn is_ready_in_this_life(&self, handle: &mut Handle) -> Result<bool, ReadyError> {
        let start = handle.info.starts;
        let log = NodeLog::open(handle)?;
        let mut reader = None;
        loop {
            // Looked at before the log is read: what it said last is then in there.
            handle.refresh()?;
            if handle.info.starts != start {
                return Ok(false);
            }
            node::note_crash(handle)?;
            reader = reader.or_else(|| log.locate().map(|placement| log.reader(placement)));
            if let Some(reader) = reader.as_mut().filter(|_| !handle.is_being_restarted()) {
                reader.set_stopped(handle.is_stopped());
                match self.is_said(&log, reader) {
                    Ok(false) => {}
                    Ok(true) => return Ok(true),
                    Err(error) if is_alive(handle, start)? => return Err(error.into()),
                    // Its memory has just been cleared for its next life.
                    Err(_) => {}
                }
            }
            self.check(handle)?;
            sleep(INTERVAL);
        }
    }

    /// Whether what it has logged since the last look tells that it is ready.
    fn is_said(
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

    /// Whether it may still become ready. One whose supervisor was killed gets another, which brings
    /// it back if its policy says so.
    fn check(&self, handle: &Handle) -> Result<(), ReadyError> {
        let name = self.name.clone();
        if handle.is_unsupervised() {
            let failures = supervisor::attach(self.driver, slice::from_ref(handle));
            failures.into_iter().next().map_or(Ok(()), Err)?;
        } else if handle.is_stopped() && !handle.may_come_back() {
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

/// Whether it still runs in that life.
fn is_alive(handle: &mut Handle, start: u64) -> Result<bool, CallError> {
    handle.refresh()?;
    Ok(handle.is_running() && handle.info.starts == start)
}

/// Whether a node has had the time that it may take to be ready.
pub(super) fn has_had(handle: &Handle, ready: &Ready) -> bool {
    Duration::from_nanos(handle.view().ran_ns) >= ready.timeout
}
