//! A node's kernel log, read from its memory.

use std::path::Path;

use insula_driver::name;
use insula_driver::{DriverError, Mapping};
use insula_image::{KernelFile, LogSource};
use kimage::log::{
    LogLayout, LogReader, Placement, format_record, halted, in_program, locate, panicked,
    resched_count,
};
use kimage::running::{RunningError, RunningKernel};
use serde::Serialize;

use super::Handle;

/// Why a node's log cannot be read. The node is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The node's record has another format.
    #[error(
        "the record of the node '{0}' cannot be read; it was left as it is\n\
         it was started by another version of insula: use that one"
    )]
    NoRecord(String),
    /// The kernel lacks the needed symbols or types.
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
    /// The kernel's file, which describes the log, has changed.
    #[error(
        "the log of the node '{name}' cannot be read: its kernel {path} has changed since the node \
         was started; it was left as it is\n\
         start nodes from an image (`insula image add`), which stores what is needed"
    )]
    FileChanged {
        /// The node.
        name: String,
        /// The kernel's file.
        path: String,
    },
    /// It is empty.
    #[error(
        "the kernel of the node '{0}' has not logged anything yet; it was left as it is\n\
         try again, or follow it with `insula logs -f {0}`"
    )]
    Nothing(String),
    /// The memory cannot be mapped.
    #[error("the memory of the node '{name}' cannot be read: {source}; it was left as it is")]
    Driver {
        /// The node.
        name: String,
        /// Why.
        source: DriverError,
    },
    /// The memory has no valid log.
    #[error("the log of the node '{name}' cannot be read: {source}; it was left as it is")]
    Read {
        /// The node.
        name: String,
        /// Why.
        source: kimage::log::LogError,
    },
}

/// A record of a node's log for output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogRecord {
    /// The kernel's record.
    #[serde(flatten)]
    pub record: kimage::log::Record,
}

impl LogRecord {
    /// The record as the kernel's console prints it, without a final newline.
    #[must_use]
    pub fn text(&self) -> String {
        format_record(&self.record)
    }
}

/// A node's mapped memory and the layout of its log.
#[derive(Debug)]
pub struct NodeLog {
    name: String,
    mapping: Mapping,
    layout: LogLayout,
    stopped: bool,
}

impl NodeLog {
    /// Maps the node's memory and reads the log's layout.
    ///
    /// # Errors
    /// [`LogError`], except `Nothing` and `Read`.
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

    /// The kernel at this placement.
    ///
    /// # Errors
    /// The kernel lacks symbols or types.
    pub fn kernel(&self, placement: Placement) -> Result<RunningKernel<'_, Mapping>, RunningError> {
        RunningKernel::attach(&self.layout, placement, &self.mapping)
    }

    /// The kernel's placement; `None` until it has logged something.
    #[must_use]
    pub fn locate(&self) -> Option<Placement> {
        locate(&self.layout, &self.mapping)
    }

    /// A reader that starts at the first record.
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

    /// Whether the kernel was halted.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn halted(&self, placement: Placement) -> Result<bool, LogError> {
        halted(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Number of rescheduling interrupts taken by the first core; `None` if the kernel does not
    /// count them.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn resched_count(&self, placement: Placement) -> Result<Option<u32>, LogError> {
        resched_count(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Whether the first core is executing a program; `false` if unknown.
    ///
    /// # Errors
    /// [`LogError::Read`].
    pub fn in_program(&self, placement: Placement) -> Result<bool, LogError> {
        in_program(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// The next record, if any.
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

/// The layout of a node's log.
///
/// # Errors
/// [`LogError`] if it is not known.
pub fn log_layout(handle: &Handle) -> Result<LogLayout, LogError> {
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
            LogSource::read_layout(&kernel.bytes).map_err(|reason| LogError::Unreadable {
                name: name.to_owned(),
                reason,
            })
        }
    }
}

/// The file, if its size and modification time are unchanged.
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
        assert!(error.contains("has changed since the node"), "{error}");
    }
}
