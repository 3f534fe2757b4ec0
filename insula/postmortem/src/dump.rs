//! Writing a dump.

use std::fmt;
use std::io;
use std::path::PathBuf;

use insula_base::error::Error;
use insula_base::root::Root;
use insula_base::units::Size;
use insula_driver::Mapping;
use insula_node::Handle;
use insula_node::monitor_state::{MonitorEnding, MonitorState};
use kimage::running::RunningKernel;
use serde::{Serialize, Serializer};

use super::backtrace::uninterrupted;
use super::inspected_node::InspectedNode;
use super::notes::Notes;
use super::store::{DumpFile, Limits, Store};
use super::vmcore::{KernelMap, Vmcore, WriteError};

/// What every error while writing leaves.
const REMOVED: &str = "the incomplete file was removed";

/// Target of a dump.
#[derive(Clone, Debug)]
pub enum Target {
    /// The folder of stored dumps, within these limits.
    Store(Limits),
    /// This file, which is replaced if it exists.
    File(PathBuf),
}

/// A dump to write.
#[derive(Clone, Debug)]
pub struct DumpRequest {
    /// Where it is written.
    pub target: Target,
    /// Whether each core of a running node is interrupted by an NMI, so that its registers are in
    /// the dump.
    pub interrupt: bool,
}

/// A part that a dump lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DumpWarning {
    /// The node was running while its memory was read.
    Live,
    /// The kernel was not found.
    NoKernel(String),
    /// The kernel has not written its VMCOREINFO yet.
    NoVmcoreinfo,
    /// The registers of some cores are missing: how many, of how many.
    NoRegisters(usize, usize),
}

impl fmt::Display for DumpWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str(
                "the node was running: memory that it changed while the dump was written may be \
                 inconsistent",
            ),
            Self::NoKernel(reason) => write!(
                f,
                "the dump contains only the memory, without a description that tools need: \
                 {reason}"
            ),
            Self::NoVmcoreinfo => f.write_str(
                "the kernel had not written its VMCOREINFO yet, tools need options that say where \
                 it \
                 is",
            ),
            Self::NoRegisters(missing, all) => {
                write!(f, "the registers of {missing} of {all} cores are unknown")
            }
        }
    }
}

impl Serialize for DumpWarning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A dump that was written.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct Dumped {
    /// The node.
    pub node: String,
    /// Path of the file.
    pub path: PathBuf,
    /// Apparent size of the file in bytes, holes included.
    pub size_bytes: u64,
    /// Bytes of nonzero memory that were written.
    pub written_bytes: u64,
    /// What it lacks.
    #[cfg_attr(feature = "schemars", schemars(with = "Vec<String>"))]
    pub warnings: Vec<DumpWarning>,
    /// Older dumps removed to stay within the limits.
    pub removed: Vec<PathBuf>,
}

/// Writes a dump of a node, running or not.
///
/// # Errors
/// When it cannot be inspected or written; the node is left as it was.
pub fn dump(handle: &Handle, root: &Root, request: &DumpRequest) -> Result<Dumped, Error> {
    let mut node = InspectedNode::open(handle)?;
    let name = node.name().to_owned();
    if request.interrupt && node.is_running() {
        node.interrupt(handle)
            .map_err(|source| uninterrupted(&name, source).leaving("no dump was written"))?;
    }
    let (map, mut notes, mut warnings) = describe(&node);
    if let Some(ended) = ended(handle) {
        notes.monitor(&ended.to_string());
    }
    if node.is_running() {
        warnings.insert(0, DumpWarning::Live);
    }
    let failed = |source| failed(&name, source);
    let plan = Vmcore::plan(
        kimage::PhysicalMemory::ranges(node.memory()),
        &map,
        notes.bytes(),
    )
    .map_err(failed)?;
    let store = Store::new(root);
    let (dump, bytes_max) = match &request.target {
        Target::Store(limits) => (store.create(&name)?, limits.bytes),
        Target::File(path) => (DumpFile::create(path.clone())?, u64::MAX),
    };
    let available_bytes = dump.available_bytes();
    let written = plan.write(node.memory(), dump.file(), bytes_max.min(available_bytes));
    let written = written.map_err(|error| match error {
        WriteError::TooLarge(_) if available_bytes < bytes_max => disk_full(&name),
        error => failed(error),
    })?;
    let path = dump.finish()?;
    let removed = match &request.target {
        Target::Store(limits) => store.prune(*limits, &path)?,
        Target::File(_) => Vec::new(),
    };
    Ok(Dumped {
        node: name,
        path,
        size_bytes: plan.size(),
        written_bytes: written,
        warnings,
        removed,
    })
}

/// Writes a dump of a node that has crashed, or was stopped because it hung, if its user asked for
/// that (`insula run --dump-on-crash`).
///
/// # Errors
/// When it cannot be inspected or written; the node's state is not affected.
pub fn dump_on_crash(handle: &Handle, root: &Root) -> Result<Option<Dumped>, Error> {
    let wanted = handle
        .record
        .as_ref()
        .is_some_and(|record| record.spec.dump_on_crash);
    let has_failed = handle.is_crashed() || handle.is_hung() || handle.has_violated();
    if !wanted || !has_failed {
        return Ok(None);
    }
    let request = DumpRequest {
        target: Target::Store(Limits::from_environment()?),
        interrupt: false,
    };
    dump(handle, root, &request).map(Some)
}

/// What ended a confined node, if its monitor did.
fn ended(handle: &Handle) -> Option<MonitorEnding> {
    // A monitor that cannot be read tells nothing.
    MonitorState::read(handle).ok()??.ended
}

/// The kernel's memory map and the notes, as far as they are known, and warnings about the rest.
fn describe(node: &InspectedNode) -> (KernelMap, Notes, Vec<DumpWarning>) {
    let mut notes = Notes::default();
    let kernel = match node.kernel() {
        Ok(kernel) => kernel,
        Err(error) => {
            let warning = DumpWarning::NoKernel(error.message());
            return (KernelMap::default(), notes, vec![warning]);
        }
    };
    let mut warnings = add_processors(&mut notes, node, &kernel);
    match kernel.vmcoreinfo() {
        Ok(Some(text)) => notes.vmcoreinfo(&text),
        Ok(None) | Err(_) => warnings.push(DumpWarning::NoVmcoreinfo),
    }
    let map = KernelMap {
        direct_map: kernel.direct_map().unwrap_or_default(),
        image: Some((kernel.image(), kernel.placement().physical)),
    };
    (map, notes, warnings)
}

fn add_processors(
    notes: &mut Notes,
    node: &InspectedNode,
    kernel: &RunningKernel<'_, Mapping>,
) -> Vec<DumpWarning> {
    let processors = node.processors(kernel);
    for (processor, registers) in &processors {
        let thread = kernel.current_thread(processor).unwrap_or_default();
        notes.processor(thread, registers.as_ref());
    }
    let unknown = processors
        .iter()
        .filter(|(_, registers)| registers.is_none());
    match unknown.count() {
        0 => Vec::new(),
        missing => vec![DumpWarning::NoRegisters(missing, processors.len())],
    }
}

fn failed(name: &str, source: WriteError) -> Error {
    match source {
        WriteError::File(error) if error.kind() == io::ErrorKind::StorageFull => disk_full(name),
        WriteError::TooLarge(max) => too_large(name, Size(max)),
        source => Error::new(format!(
            "the dump of the node '{name}' could not be written"
        ))
        .because(source)
        .leaving(REMOVED),
    }
}

fn disk_full(name: &str) -> Error {
    let what = format!(
        "the dump of the node '{name}' would fill the disk, of which a twentieth is kept free"
    );
    Error::new(what).leaving(REMOVED).hint(
        "free space (`insula dump ls`, `insula dump rm`), or write it elsewhere with --output",
    )
}

/// The error for a dump that takes more than all dumps may.
fn too_large(name: &str, max: Size) -> Error {
    let what =
        format!("the dump of the node '{name}' takes more than {max}, the limit for all dumps");
    Error::new(what).leaving(REMOVED).hint(format!(
        "allow more with --size-max or {}, or write it elsewhere with --output",
        Limits::BYTES_VARIABLE
    ))
}
