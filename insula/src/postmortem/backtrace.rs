//! Making a node's kernel print where each of its cores is.

use super::subject::{Subject, SubjectError};
use crate::node::nmi::{BacktraceMask, Interrupted, NmiError};
use crate::node::{Handle, LogError, LogRecord, NodeLog};

/// Why there is no backtrace. The node was left as it is, unless said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum BacktraceError {
    /// The node does not run.
    #[error(
        "the node '{0}' does not run; it was left as it is\n\
         `insula logs {0}` shows its last words, `insula dump {0}` keeps its memory"
    )]
    NotRunning(String),
    /// It cannot be looked into.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// Its log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Its cores could not be interrupted.
    #[error("the cores of the node '{name}' could not be interrupted: {source}")]
    Interrupt {
        /// The node.
        name: String,
        /// Why.
        source: NmiError,
    },
}

/// What the kernel printed.
#[derive(Clone, Debug)]
pub struct Backtrace {
    /// What it has logged since it was asked, other lines among them.
    pub records: Vec<LogRecord>,
    /// Which cores have answered.
    pub cores: Interrupted,
}

impl Subject {
    /// Interrupts each core of a node that runs; their registers are known from then on.
    pub(super) fn interrupt(&mut self, handle: &Handle) -> Result<Interrupted, NmiError> {
        let kernel = self.kernel();
        let mask = match &kernel {
            Ok(kernel) => BacktraceMask::of(kernel)?,
            // Whoever asks for the kernel is told why it is not known.
            Err(_) => return Ok(Interrupted::default()),
        };
        drop(kernel);
        let interrupted = mask.interrupt(handle, self.memory_mut())?;
        self.set_frozen();
        Ok(interrupted)
    }
}

/// Makes each core of a running node print where it is, by an NMI: also one that hangs with
/// interrupts off. The node goes on as before.
///
/// # Errors
/// [`BacktraceError`].
pub fn backtrace(handle: &Handle) -> Result<Backtrace, BacktraceError> {
    let mut subject = Subject::open(handle)?;
    let name = subject.name().to_owned();
    if !handle.is_running() {
        return Err(BacktraceError::NotRunning(name));
    }
    subject.kernel()?;
    let log = NodeLog::open(handle)?;
    let placement = log
        .locate()
        .ok_or_else(|| LogError::Nothing(name.clone()))?;
    let mut reader = log.reader(placement);
    if let Some(last) = log.last(placement, 1)?.pop() {
        reader.seek(last.record.seq + 1);
    }
    let cores = subject
        .interrupt(handle)
        .map_err(|source| BacktraceError::Interrupt { name, source })?;
    let mut records = Vec::new();
    while let Some(record) = log.next(&mut reader)? {
        records.push(record);
    }
    Ok(Backtrace { records, cores })
}
