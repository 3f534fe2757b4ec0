//! What came of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::process::Ended;
use super::{MachineError, Prepared, at};
use crate::payload;
use crate::tool::tail;

/// Most bytes of output and log that a failure repeats, each.
const TAIL_BYTES: usize = 6000;

/// What came of a run whose machine has switched itself off.
pub struct Outcome {
    /// The task's exit status; none when the machine went down before its end.
    pub status: Option<i32>,
    /// What the task printed, errors included.
    pub output: String,
    /// The base kernel's log, as its serial port put it out.
    pub log: String,
    /// Files that the task left in /result.
    pub files: BTreeMap<String, Vec<u8>>,
    /// From the machine's start to its end.
    pub elapsed: Duration,
    /// How many runs before this one the emulator has spoilt.
    pub spoilt: u32,
    /// How it ended, unless it was switched off.
    abrupt: Option<String>,
    prepared: Prepared,
}

/// A task that did not succeed. Why comes last: of a long text the end is what is seen.
#[derive(Debug, thiserror::Error)]
#[error(
    "The end of the machine's log ({folder}):\n{log}\nThe end of its output:\n{output}\n{what}"
)]
pub struct Failure {
    what: String,
    output: String,
    log: String,
    folder: PathBuf,
}

impl Outcome {
    pub(super) fn new(prepared: Prepared, ended: Ended) -> Result<Self, MachineError> {
        let result = prepared.result();
        let mut files = payload::read_result(&result).map_err(at(&result))?;
        let log = fs::read(prepared.log()).map_err(at(&prepared.log()))?;
        let status = files.remove("status");
        Ok(Self {
            status: status.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok()),
            output: String::from_utf8_lossy(&ended.output).into_owned(),
            log: String::from_utf8_lossy(&log).into_owned(),
            files,
            elapsed: ended.elapsed,
            spoilt: 0,
            abrupt: ended.abrupt,
            prepared,
        })
    }

    /// Itself, made after so many runs that the emulator has spoilt.
    pub(super) fn after_spoilt(self, spoilt: u32) -> Self {
        Self { spoilt, ..self }
    }

    /// Itself, if the task succeeded.
    ///
    /// # Errors
    /// When it did not, or the machine went down before its end.
    pub fn succeeded(self) -> Result<Self, Failure> {
        match self.status {
            Some(0) => Ok(self),
            Some(status) => Err(self.fail(format!("the task ended with status {status}"))),
            None => {
                let how = self.abrupt.as_deref().unwrap_or("it was switched off");
                let what = format!("the machine went down before the task had ended: {how}");
                Err(self.fail(what))
            }
        }
    }

    /// Makes this run count as failed for the reason `what`, and keeps its folder.
    pub fn fail(self, what: String) -> Failure {
        Failure {
            what,
            output: tail(&self.output, TAIL_BYTES).to_owned(),
            log: tail(&self.log, TAIL_BYTES).to_owned(),
            folder: self.prepared.keep(),
        }
    }
}
