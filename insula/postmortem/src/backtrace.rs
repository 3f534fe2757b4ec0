//! Making a node's kernel print a backtrace of each of its cores.

use insula_base::error::{Error, Source};
use insula_node::nmi::{BacktraceMask, Interrupted};
use insula_node::{Handle, LogRecord, NodeLog, is_paused, no_log_yet};

use super::inspected_node::InspectedNode;

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
    pub(super) fn interrupt(&mut self, handle: &Handle) -> Result<Interrupted, Source> {
        let kernel = self.kernel();
        let mask = match &kernel {
            Ok(kernel) => BacktraceMask::of(kernel)?,
            // Callers that need the kernel get the reason from `kernel()`.
            Err(_) => return Ok(Interrupted::default()),
        };
        drop(kernel);
        let interrupted = mask.interrupt(handle)?;
        self.set_registers_known();
        Ok(interrupted)
    }
}

/// Makes each core of a running node print a backtrace, by an NMI: also one that hangs with
/// interrupts off. The node continues as before.
///
/// # Errors
/// When it does not run, or its kernel or log cannot be read. It is left as it was.
pub fn backtrace(handle: &Handle) -> Result<Backtrace, Error> {
    let mut node = InspectedNode::open(handle)?;
    let name = node.name().to_owned();
    if !handle.is_running() {
        return Err(not_running(&name));
    }
    if handle.is_paused() {
        return Err(is_paused(&name));
    }
    node.kernel()?;
    let log = NodeLog::open(handle)?;
    let placement = log.locate();
    let placement = placement.ok_or_else(|| no_log_yet(&name))?;
    let mut reader = log.reader(placement);
    if let Some(last) = log.last(placement, 1)?.pop() {
        reader.seek(last.record.seq + 1);
    }
    let cores = node
        .interrupt(handle)
        .map_err(|source| uninterrupted(&name, source))?;
    let mut records = Vec::new();
    while let Some(record) = log.next(&mut reader)? {
        records.push(record);
    }
    Ok(Backtrace { records, cores })
}

fn not_running(name: &str) -> Error {
    Error::new(format!("the node '{name}' is not running"))
        .unchanged()
        .hint(format!(
            "`insula logs {name}` shows the end of its log, `insula dump {name}` writes its memory \
             to a file"
        ))
}

/// The error for cores that could not be interrupted.
pub(super) fn uninterrupted(name: &str, source: Source) -> Error {
    let what = format!("the cores of the node '{name}' could not be interrupted");
    Error::new(what).because(source)
}
