//! Writing a dump.

use std::fmt;
use std::io;
use std::path::PathBuf;

use kimage::running::RunningKernel;
use serde::{Serialize, Serializer};

use super::notes::Notes;
use super::store::{Limits, LimitsError, Pending, Store, StoreError};
use super::subject::{Subject, SubjectError};
use super::vmcore::{KernelMap, Vmcore, WriteError};
use crate::driver::Mapping;
use crate::node::{Handle, nmi};
use crate::root::Root;
use crate::units::Size;

/// Why no dump was written. The node was left as it is.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The node cannot be looked into.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The folder cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The limits make no sense.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The disk is full.
    #[error(
        "the dump of the node '{0}' would fill the disk, of which a twentieth stays free; what was \
         written of it was removed\n\
         make room (`insula dump ls`, `insula dump rm`), or write it elsewhere with --output"
    )]
    DiskFull(String),
    /// It takes more than dumps may.
    #[error(
        "the dump of the node '{name}' takes more than {max}, as much as all dumps may; what was \
         written of it was removed\n\
         allow more with --size-max or {variable}, or write it elsewhere with --output",
        variable = Limits::BYTES_VARIABLE
    )]
    TooLarge {
        /// The node.
        name: String,
        /// What dumps may take.
        max: Size,
    },
    /// It could not be written.
    #[error(
        "the dump of the node '{name}' could not be written: {source}; what was written of it was \
         removed"
    )]
    Write {
        /// The node.
        name: String,
        /// Why.
        source: WriteError,
    },
    /// The cores could not be interrupted.
    #[error(
        "the cores of the node '{name}' could not be interrupted: {source}; no dump was written"
    )]
    Interrupt {
        /// The node.
        name: String,
        /// Why.
        source: nmi::NmiError,
    },
}

/// Where a dump goes.
#[derive(Clone, Debug)]
pub enum Target {
    /// Into the folder where dumps are kept, within these limits.
    Kept(Limits),
    /// Into this file, which is replaced if it is there.
    File(PathBuf),
}

/// A dump to write.
#[derive(Clone, Debug)]
pub struct DumpRequest {
    /// Where to.
    pub target: Target,
    /// Whether each core of a node that runs is interrupted by an NMI, so that its registers are in
    /// the dump.
    pub interrupt: bool,
}

/// What a dump does not have, though one would like it to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The node ran meanwhile.
    Live,
    /// The kernel was not found.
    NoKernel(String),
    /// The kernel has not written its VMCOREINFO yet.
    NoVmcoreinfo,
    /// The registers of so many cores of so many are missing.
    NoRegisters(usize, usize),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str(
                "the node ran meanwhile: what it changed while the dump was written may not fit \
                 together",
            ),
            Self::NoKernel(reason) => write!(
                f,
                "the dump holds the memory and nothing else, tools will not know what is in it: \
                 {reason}"
            ),
            Self::NoVmcoreinfo => f.write_str(
                "the kernel had not written its VMCOREINFO yet, tools will have to be told where it \
                 is",
            ),
            Self::NoRegisters(missing, all) => {
                write!(f, "the registers of {missing} of {all} cores are not known")
            }
        }
    }
}

impl Serialize for Doubt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A dump that was written.
#[derive(Clone, Debug, Serialize)]
pub struct Dumped {
    /// The node.
    pub node: String,
    /// Where it is.
    pub path: PathBuf,
    /// Bytes that it seems to have, holes included.
    pub size_bytes: u64,
    /// Bytes of memory that were not zero, and are in it.
    pub written_bytes: u64,
    /// What it lacks.
    pub doubts: Vec<Doubt>,
    /// Dumps that went for it.
    pub removed: Vec<PathBuf>,
}

/// Writes a dump of a node, running or not.
///
/// # Errors
/// [`DumpError`].
pub fn dump(handle: &Handle, root: &Root, request: &DumpRequest) -> Result<Dumped, DumpError> {
    let mut subject = Subject::open(handle)?;
    let name = subject.name().to_owned();
    if request.interrupt && subject.is_running() {
        subject
            .interrupt(handle)
            .map_err(|source| DumpError::Interrupt {
                name: name.clone(),
                source,
            })?;
    }
    let (map, notes, mut doubts) = describe(&subject);
    if subject.is_running() {
        doubts.insert(0, Doubt::Live);
    }
    let named = |source| named(&name, source);
    let plan = Vmcore::plan(
        kimage::PhysicalMemory::ranges(subject.memory()),
        &map,
        notes.bytes(),
    )
    .map_err(named)?;
    let store = Store::new(root);
    let (pending, bytes_max) = match &request.target {
        Target::Kept(limits) => (store.begin(&name)?, limits.bytes),
        Target::File(path) => (Pending::create(path.clone())?, u64::MAX),
    };
    let room = pending.room();
    let written = plan.write(subject.memory(), pending.file(), bytes_max.min(room));
    let written = written.map_err(|error| match error {
        WriteError::TooLarge(_) if room < bytes_max => DumpError::DiskFull(name.clone()),
        error => named(error),
    })?;
    let path = pending.finish()?;
    let removed = match &request.target {
        Target::Kept(limits) => store.prune(*limits, &path)?,
        Target::File(_) => Vec::new(),
    };
    Ok(Dumped {
        node: name,
        path,
        size_bytes: plan.size(),
        written_bytes: written,
        doubts,
        removed,
    })
}

/// Keeps a dump of a node that has crashed, or was stopped because it hung, if its user wanted that
/// (`insula run --dump-on-crash`).
///
/// # Errors
/// [`DumpError`]; the node has ended as it has all the same.
pub fn keep_if_wanted(handle: &Handle, root: &Root) -> Result<Option<Dumped>, DumpError> {
    let wanted = handle
        .record
        .as_ref()
        .is_some_and(|record| record.dump_on_crash);
    if !wanted || !(handle.is_crashed() || handle.is_hung()) {
        return Ok(None);
    }
    let request = DumpRequest {
        target: Target::Kept(Limits::from_environment()?),
        interrupt: false,
    };
    dump(handle, root, &request).map(Some)
}

/// Where things are and what the notes tell, as far as it is known, and what is not.
fn describe(subject: &Subject) -> (KernelMap, Notes, Vec<Doubt>) {
    let mut notes = Notes::default();
    let kernel = match subject.kernel() {
        Ok(kernel) => kernel,
        Err(error) => {
            let reason = error.to_string();
            let doubt = Doubt::NoKernel(reason.lines().next().unwrap_or_default().to_owned());
            return (KernelMap::default(), notes, vec![doubt]);
        }
    };
    let mut doubts = add_processors(&mut notes, subject, &kernel);
    match kernel.vmcoreinfo() {
        Ok(Some(text)) => notes.vmcoreinfo(&text),
        Ok(None) | Err(_) => doubts.push(Doubt::NoVmcoreinfo),
    }
    let map = KernelMap {
        direct_map: kernel.direct_map().unwrap_or_default(),
        image: Some((kernel.image(), kernel.placement().physical)),
    };
    (map, notes, doubts)
}

fn add_processors(
    notes: &mut Notes,
    subject: &Subject,
    kernel: &RunningKernel<'_, Mapping>,
) -> Vec<Doubt> {
    let processors = subject.processors(kernel);
    for (processor, registers) in &processors {
        let thread = kernel.current_thread(processor).unwrap_or_default();
        notes.processor(thread, registers.as_ref());
    }
    let unknown = processors
        .iter()
        .filter(|(_, registers)| registers.is_none());
    match unknown.count() {
        0 => Vec::new(),
        missing => vec![Doubt::NoRegisters(missing, processors.len())],
    }
}

fn named(name: &str, source: WriteError) -> DumpError {
    let name = name.to_owned();
    match source {
        WriteError::File(error) if error.kind() == io::ErrorKind::StorageFull => {
            DumpError::DiskFull(name)
        }
        WriteError::TooLarge(max) => DumpError::TooLarge {
            name,
            max: Size(max),
        },
        source => DumpError::Write { name, source },
    }
}
