//! Waiting until a node is ready.

use std::thread::sleep;
use std::time::Duration;

use super::project::Ready;
use crate::driver::{CallError, Driver};
use crate::name::Name;
use crate::node::{self, FindError, Handle, LogError, NodeLog};

/// How often a node is looked at.
const INTERVAL: Duration = Duration::from_millis(20);

/// Why a node is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ReadyError {
    /// It has ended.
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
    /// The module failed.
    #[error("the module failed: {0}; the node was left as it is")]
    Call(#[from] CallError),
}

/// Waits until a node is ready. Answers how long after its start that was seen, in nanoseconds.
///
/// # Errors
/// [`ReadyError`].
pub(super) fn wait(driver: &Driver, name: &Name, ready: &Ready) -> Result<u64, ReadyError> {
    let mut handle = node::find(driver, name)?;
    let log = NodeLog::open(&handle)?;
    let mut reader = None;
    loop {
        // Looked at before the log is read: what it said last is then in there.
        handle.refresh()?;
        node::note_crash(&mut handle)?;
        reader = reader.or_else(|| log.locate().map(|placement| log.reader(placement)));
        if let Some(reader) = &mut reader {
            reader.set_stopped(handle.is_stopped());
            while let Some(record) = log.next(reader)? {
                if record.text().contains(&ready.log) {
                    return Ok(handle.view().ran_ns);
                }
            }
        }
        check(&handle, name, ready)?;
        sleep(INTERVAL);
    }
}

/// Whether it may still become ready.
fn check(handle: &Handle, name: &Name, ready: &Ready) -> Result<(), ReadyError> {
    let (name, view) = (name.clone(), handle.view());
    if handle.is_stopped() {
        let reason = view.reason.unwrap_or("stopped");
        return Err(ReadyError::Ended { name, reason });
    }
    if has_had(handle, ready) {
        let Ready { log, timeout } = ready.clone();
        return Err(ReadyError::Late { name, log, timeout });
    }
    Ok(())
}

/// Whether a node has had the time that it may take to be ready.
pub(super) fn has_had(handle: &Handle, ready: &Ready) -> bool {
    Duration::from_nanos(handle.view().ran_ns) >= ready.timeout
}
