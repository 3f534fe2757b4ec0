//! Outcome of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::process::Ended;
use super::{MachineError, Prepared, at};
use crate::host::payload;
use crate::host::tool::tail;

/// Most bytes of output and log that a failure quotes, each.
const TAIL_BYTES: usize = 6000;

/// Outcome of a run whose machine has ended by itself.
pub struct Outcome {
    /// Exit status of the task; none when the machine ended before it.
    pub status: Option<i32>,
    /// Output of the task, stderr included.
    pub output: String,
    /// The base kernel's log, as its serial port put it out.
    pub log: String,
    /// Files that the task left in /result.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Time from the machine's start to its end.
    pub elapsed: Duration,
    /// Earlier runs that the emulator's fault ended.
    pub emulator_faults: u32,
    /// How the machine ended, unless it was switched off.
    abnormal_end: Option<String>,
    folder: TempDir,
}

/// Failure of a task. The reason is printed last: of a long text the end is what is seen.
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
        let files = payload::read_result(&result).map_err(at(&result))?;
        let log = fs::read(prepared.log()).map_err(at(&prepared.log()))?;
        Ok(Self::of_parts(prepared.into_folder(), ended, &log, files))
    }

    /// From the content of the log and the files of the result.
    pub(super) fn of_parts(
        folder: TempDir,
        ended: Ended,
        log: &[u8],
        mut files: BTreeMap<String, Vec<u8>>,
    ) -> Self {
        let status = files.remove("status");
        Self {
            status: status.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok()),
            output: String::from_utf8_lossy(&ended.output).into_owned(),
            log: String::from_utf8_lossy(log).into_owned(),
            files,
            elapsed: ended.elapsed,
            emulator_faults: 0,
            abnormal_end: ended.abnormal_end,
            folder,
        }
    }

    /// Sets the number of earlier runs that the emulator's fault ended.
    pub(super) fn after_emulator_faults(self, emulator_faults: u32) -> Self {
        Self {
            emulator_faults,
            ..self
        }
    }

    /// Itself, if the task succeeded.
    ///
    /// # Errors
    /// When it did not, or the machine ended before it.
    pub fn succeeded(self) -> Result<Self, Failure> {
        match self.status {
            Some(0) => Ok(self),
            Some(status) => Err(self.fail(format!("the task ended with status {status}"))),
            None => {
                let how = self
                    .abnormal_end
                    .as_deref()
                    .unwrap_or("it was switched off");
                let what = format!("the machine went down before the task had ended: {how}");
                Err(self.fail(what))
            }
        }
    }

    /// Turns the run into a failure for the reason `what`, and keeps its folder, with the whole output.
    pub fn fail(self, what: String) -> Failure {
        // Its end is quoted anyway.
        let _ = fs::write(self.folder.path().join("output"), &self.output);
        Failure {
            what,
            output: tail(&self.output, TAIL_BYTES).to_owned(),
            log: tail(&self.log, TAIL_BYTES).to_owned(),
            folder: self.folder.keep(),
        }
    }
}
