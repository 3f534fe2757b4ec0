//! A node's kernel log, read from its memory.

use std::path::Path;
use std::time::{Duration, SystemTime};

use insula_base::error::Error;
use insula_driver::name;
use insula_driver::{DriverError, Mapping};
use insula_image::{KernelFile, LogSource};
use kimage::log::{
    LogLayout, LogReader, Placement, format_record, halted, in_program, locate, panicked,
    resched_count,
};
use kimage::running::{RunningError, RunningKernel};
use serde::{Serialize, Serializer};

use super::Handle;
use super::record::no_record;
use super::view::wall_time;

/// A record of a node's log for output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct LogRecord {
    /// The kernel's record.
    #[serde(flatten)]
    pub record: kimage::log::Record,
    /// The base's time then, if it is known: not of a copy, whose kernel was started in another node.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rfc3339")]
    #[cfg_attr(feature = "schemars", schemars(with = "Option<String>"))]
    pub time: Option<SystemTime>,
}

fn rfc3339<S: Serializer>(time: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
    let text = time.map(|time| humantime::format_rfc3339_micros(time).to_string());
    text.serialize(to)
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
    /// When its kernel was started.
    started: Option<SystemTime>,
}

impl NodeLog {
    /// Maps the node's memory and reads the log's layout.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn open(handle: &Handle) -> Result<Self, Error> {
        let name = name::text(&handle.info.name);
        let layout = log_layout(handle)?;
        let mapping = handle
            .node
            .memory()
            .map_err(DriverError::from)
            .and_then(|memory| memory.map_for_reading())
            .map_err(|error| {
                Error::new(format!("the memory of the node '{name}' cannot be read"))
                    .because(error)
                    .unchanged()
            })?;
        let stopped = handle.is_stopped();
        Ok(Self {
            name,
            mapping,
            layout,
            stopped,
            started: kernel_started(handle),
        })
    }

    /// Whether it is known when records were written.
    #[must_use]
    pub fn has_times(&self) -> bool {
        self.started.is_some()
    }

    fn record(&self, record: kimage::log::Record) -> LogRecord {
        let since = Duration::from_nanos(record.timestamp_ns);
        LogRecord {
            time: self.started.and_then(|started| started.checked_add(since)),
            record,
        }
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
    /// The memory has no valid log.
    pub fn panicked(&self, placement: Placement) -> Result<bool, Error> {
        panicked(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Whether the kernel was halted.
    ///
    /// # Errors
    /// The memory has no valid log.
    pub fn halted(&self, placement: Placement) -> Result<bool, Error> {
        halted(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Number of rescheduling interrupts taken by the first core; `None` if the kernel does not
    /// count them.
    ///
    /// # Errors
    /// The memory has no valid log.
    pub fn resched_count(&self, placement: Placement) -> Result<Option<u32>, Error> {
        resched_count(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// Whether the first core is executing a program; `false` if unknown.
    ///
    /// # Errors
    /// The memory has no valid log.
    pub fn in_program(&self, placement: Placement) -> Result<bool, Error> {
        in_program(&self.layout, placement, &self.mapping).map_err(|source| self.failed(source))
    }

    /// The next record, if any.
    ///
    /// # Errors
    /// The memory has no valid log.
    pub fn next(&self, reader: &mut LogReader<'_, Mapping>) -> Result<Option<LogRecord>, Error> {
        let record = reader.next_record().map_err(|source| self.failed(source))?;
        Ok(record.map(|record| self.record(record)))
    }

    /// The last records, at most `count`, oldest first.
    ///
    /// # Errors
    /// The memory has no valid log.
    pub fn last(&self, placement: Placement, count: usize) -> Result<Vec<LogRecord>, Error> {
        let last = self
            .reader(placement)
            .last(count)
            .map_err(|source| self.failed(source))?;
        Ok(last.into_iter().map(|record| self.record(record)).collect())
    }

    fn failed(&self, error: kimage::log::LogError) -> Error {
        unreadable(&self.name).because(error)
    }
}

/// When a node's kernel was started, by the base's clock of now.
fn kernel_started(handle: &Handle) -> Option<SystemTime> {
    let started_ns = handle.info.started_ns;
    if handle.snapshot().is_some() || started_ns == 0 {
        return None;
    }
    wall_time(started_ns)
}

/// The layout of a node's log.
///
/// # Errors
/// Why it is not known.
pub fn log_layout(handle: &Handle) -> Result<LogLayout, Error> {
    let name = name::text(&handle.info.name);
    match &handle.record {
        Some(record) => layout(&name, &record.log),
        None => Err(no_record(&name).unchanged()),
    }
}

fn layout(name: &str, source: &LogSource) -> Result<LogLayout, Error> {
    match source {
        LogSource::Layout(layout) => Ok(*layout.clone()),
        LogSource::Unreadable(reason) => Err(not_described(name, reason)),
        LogSource::File {
            path,
            size,
            modified_ns,
        } => {
            let kernel = unchanged(path, *size, *modified_ns);
            let kernel = kernel.ok_or_else(|| file_changed(name, path))?;
            LogSource::read_layout(&kernel.bytes).map_err(|reason| not_described(name, &reason))
        }
    }
}

/// The error of a node whose kernel has logged nothing yet.
#[must_use]
pub fn no_log_yet(name: &str) -> Error {
    let what = format!("the kernel of the node '{name}' has not logged anything yet");
    let hint = format!("try again, or follow it with `insula logs -f {name}`");
    Error::new(what).unchanged().hint(hint)
}

fn unreadable(name: &str) -> Error {
    Error::new(format!("the log of the node '{name}' cannot be read")).unchanged()
}

/// The kernel lacks the needed symbols or types.
fn not_described(name: &str, reason: &str) -> Error {
    unreadable(name)
        .because(reason)
        .hint("use a kernel built with KALLSYMS_ALL and DEBUG_INFO_BTF, as distributions' are")
}

/// The kernel's file, which describes the log, has changed.
fn file_changed(name: &str, path: &Path) -> Error {
    let why = format!(
        "its kernel {} has changed since the node was started",
        path.display()
    );
    unreadable(name)
        .because(why)
        .hint("start nodes from an image (`insula image add`), which stores what is needed")
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
        let refusal = || layout("web", &source).unwrap_err().to_string();
        assert!(refusal().contains("KALLSYMS_ALL"), "{}", refusal());
        std::fs::write(&path, b"another").unwrap();
        assert!(refusal().contains("has changed since"), "{}", refusal());
        std::fs::remove_file(&path).unwrap();
        assert!(refusal().contains("has changed since"), "{}", refusal());
    }
}
