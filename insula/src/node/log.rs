//! A node's kernel log, read from its memory.

use std::path::Path;

use kimage::log::{
    LogLayout, LogReader, Placement, format_record, halted, in_program, locate, panicked, pulse,
};
use kimage::running::{RunningError, RunningKernel};
use serde::Serialize;

use super::Handle;
use crate::driver::{DriverError, Mapping};
use crate::image::{KernelFile, LogSource};
use crate::name;

/// Why a node's log cannot be read. The node was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// What is kept beside the node is not ours.
    #[error(
        "the record of the node '{0}' cannot be understood; it was left as it is\n\
         it was started by another version of insula: use that one"
    )]
    NoRecord(String),
    /// The kernel does not say how.
    #[error(
        "the log of the node '{name}' cannot be read: {reason}; it was left as it is\n\
         use a kernel built with KALLSYMS_ALL and DEBUG_INFO_BTF, as distributions' are"
    )]
    Unreadable {
        /// The node.
        name: String,
        /// Why.
        reason: String,
    },
    /// The file that says how has changed.
    #[error(
        "the log of the node '{name}' cannot be read: its kernel {path} is not the file any more \
         that the node was started from; it was left as it is\n\
         start nodes from an image (`insula image add`), which keeps what is needed"
    )]
    FileChanged {
        /// The node.
        name: String,
        /// The kernel's file.
        path: String,
    },
    /// There is none yet.
    #[error(
        "the kernel of the node '{0}' has not logged anything yet; it was left as it is\n\
         try again, or follow it with `insula logs -f {0}`"
    )]
    Nothing(String),
    /// The memory cannot be reached.
    #[error("the memory of the node '{name}' cannot be read: {source}; it was left as it is")]
    Driver {
        /// The node.
        name: String,
        /// Why.
        source: DriverError,
    },
    /// What lies there is no log.
    #[error("the log of the node '{name}' cannot be read: {source}; it was left as it is")]
    Read {
        /// The node.
        name: String,
        /// Why.
        source: kimage::log::LogError,
    },
}

/// A record of a node's log as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogRecord {
    /// The kernel's record.
    #[serde(flatten)]
    pub record: kimage::log::Record,
}

impl LogRecord {
    /// As the kernel's console shows it, one line or several, no newline at the end.
    #[must_use]
    pub fn text(&self) -> String {
        format_record(&self.record)
    }
}

/// A node's memory, and how its kernel keeps its log there.
#[derive(Debug)]
pub struct NodeLog {
    name: String,
    mapping: Mapping,
    layout: LogLayout,
    stopped: bool,
}

impl NodeLog {
    /// Maps the node's memory and learns how the log is kept.
    ///
    /// # Errors
    /// [`LogError`], save `Nothing` and `Read`.
    pub fn open(handle: &Handle) -> Result<Self, LogError> {
        let name = name::text(&handle.info.name);
        let layout = log_layout(handle)?;
        let mapping = handle
            .node
            .memory()
            .map_err(DriverError::from)
            .and_then(|memory| Ok(memory.map()?))
            .map_err(|source| LogError::Driver {
                name: name.clone(),
                source,
            })?;
        let stopped = handle.is_stopped();
        Ok(Self {
            name,
            mapping,
            layout,
            stopped,
        })
    }

    /// The kernel at that place.
    ///
    /// # Errors
    /// What the kernel in memory lacks.
    pub fn kernel(&self, placement: Placement) -> Result<RunningKernel<'_, Mapping>, RunningError> {
        RunningKernel::attach(&self.layout, placement, &self.mapping)
    }

    /// Where the kernel has put itself; `None` until it has logged something.
    #[must_use]
    pub fn locate(&self) -> Option<Placement> {
        locate(&self.layout, &self.mapping)
    }

    /// A reader from the first record on.
    #[must_use]
    pub fn reader(&self, placement: Placement) -> LogReader<'_, Mapping> {
        let mut reader = LogReader::new(&self.layout, placement, &self.mapping);
        reader.set_stopped(self.stopped);
        reader
    }

    /// Whether the kernel has panicked.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn panicked(&self, placement: Placement) -> Result<bool, LogError> {
        panicked(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Whether the kernel was told to halt.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn halted(&self, placement: Placement) -> Result<bool, LogError> {
        halted(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// How many rescheduling interrupts the kernel's first core has taken; `None` when it does not
    /// count them.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn pulse(&self, placement: Placement) -> Result<Option<u32>, LogError> {
        pulse(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Whether the kernel's first core executes a program just now; `false` when the kernel does not
    /// tell.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn in_program(&self, placement: Placement) -> Result<bool, LogError> {
        in_program(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// The next record, if there is one.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn next(&self, reader: &mut LogReader<'_, Mapping>) -> Result<Option<LogRecord>, LogError> {
        let record = reader.next_record().map_err(|source| self.failed(source))?;
        Ok(record.map(|record| LogRecord { record }))
    }

    /// The last records, at most `count`, oldest first.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn last(&self, placement: Placement, count: usize) -> Result<Vec<LogRecord>, LogError> {
        let last = self
            .reader(placement)
            .last(count)
            .map_err(|source| self.failed(source))?;
        Ok(last
            .into_iter()
            .map(|record| LogRecord { record })
            .collect())
    }

    fn failed(&self, source: kimage::log::LogError) -> LogError {
        LogError::Read {
            name: self.name.clone(),
            source,
        }
    }
}

/// How a node's log is kept.
///
/// # Errors
/// [`LogError`] when that is not known.
pub(crate) fn log_layout(handle: &Handle) -> Result<LogLayout, LogError> {
    let name = name::text(&handle.info.name);
    match &handle.record {
        Some(record) => layout(&name, &record.log),
        None => Err(LogError::NoRecord(name)),
    }
}

fn layout(name: &str, source: &LogSource) -> Result<LogLayout, LogError> {
    match source {
        LogSource::Layout(layout) => Ok(*layout.clone()),
        LogSource::Unreadable(reason) => Err(LogError::Unreadable {
            name: name.to_owned(),
            reason: reason.clone(),
        }),
        LogSource::File {
            path,
            size,
            modified_ns,
        } => {
            let kernel =
                unchanged(path, *size, *modified_ns).ok_or_else(|| LogError::FileChanged {
                    name: name.to_owned(),
                    path: path.display().to_string(),
                })?;
            LogSource::learn(&kernel.bytes).map_err(|reason| LogError::Unreadable {
                name: name.to_owned(),
                reason,
            })
        }
    }
}

/// The file, if it still has that size and time of modification.
fn unchanged(path: &Path, size: u64, modified_ns: u64) -> Option<KernelFile> {
    let file = KernelFile::read(path).ok()?;
    (file.bytes.len() as u64 == size && file.modified_ns == modified_ns).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_changed_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vmlinuz");
        std::fs::write(&path, b"no kernel").unwrap();
        let source = KernelFile::read(&path).unwrap().log_source();
        assert!(matches!(
            layout("web", &source),
            Err(LogError::Unreadable { .. })
        ));
        std::fs::write(&path, b"another").unwrap();
        assert!(matches!(
            layout("web", &source),
            Err(LogError::FileChanged { .. })
        ));
        std::fs::remove_file(&path).unwrap();
        let error = layout("web", &source).unwrap_err().to_string();
        assert!(error.contains("is not the file any more"), "{error}");
    }
}
