//! Making a node's kernel print a backtrace of each of its cores.

use insula_node::nmi::{BacktraceMask, Interrupted, NmiError};
use insula_node::{Handle, LogError, LogRecord, NodeLog};

use super::inspected_node::{InspectError, InspectedNode};

/// Why there is no backtrace. The node was left as it is, unless said otherwise.
#[derive(Debug, thiserror::Error)]
pub enum BacktraceError {
    /// The node does not run.
    #[error(
        "the node '{0}' is not running; it was left as it is\n\
         `insula logs {0}` shows the end of its log, `insula dump {0}` writes its memory to a file"
    )]
    NotRunning(String),
    /// It cannot be inspected.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Its cores could not be interrupted.
    #[error("the cores of the node '{name}' could not be interrupted: {source}")]
    Interrupt {
        /// The node.
        name: String,
        /// The error.
        source: NmiError,
    },
}

/// A backtrace of a node's cores.
#[derive(Clone, Debug)]
pub struct Backtrace {
    /// Log records since the request, other lines included.
    pub records: Vec<LogRecord>,
    /// The cores that responded.
    pub cores: Interrupted,
}

impl InspectedNode {
    /// Interrupts each core of a running node; their registers are known from then on.
    pub(super) fn interrupt(&mut self, handle: &Handle) -> Result<Interrupted, NmiError> {
        let kernel = self.kernel();
        let mask = match &kernel {
            Ok(kernel) => BacktraceMask::of(kernel)?,
            // Callers that need the kernel get the reason from `kernel()`.
            Err(_) => return Ok(Interrupted::default()),
        };
        drop(kernel);
        let interrupted = mask.interrupt(handle, self.memory_mut())?;
        self.set_registers_known();
        Ok(interrupted)
    }
}

/// Makes each core of a running node print a backtrace, by an NMI: also one that hangs with
/// interrupts off. The node continues as before.
///
/// # Errors
/// [`BacktraceError`].
pub fn backtrace(handle: &Handle) -> Result<Backtrace, BacktraceError> {
    let mut node = InspectedNode::open(handle)?;
    let name = node.name().to_owned();
    if !handle.is_running() {
        return Err(BacktraceError::NotRunning(name));
    }
    node.kernel()?;
    let log = NodeLog::open(handle)?;
    let placement = log
        .locate()
        .ok_or_else(|| LogError::Nothing(name.clone()))?;
    let mut reader = log.reader(placement);
    if let Some(last) = log.last(placement, 1)?.pop() {
        reader.seek(last.record.seq + 1);
    }
    let cores = node
        .interrupt(handle)
        .map_err(|source| BacktraceError::Interrupt { name, source })?;
    let mut records = Vec::new();
    while let Some(record) = log.next(&mut reader)? {
        records.push(record);
    }
    Ok(Backtrace { records, cores })
}
