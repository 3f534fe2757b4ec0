//! The kernels that can be watched: the base's, and those of nodes.

use crate::kcore::Kcore;
use crate::module_files::ModuleFiles;
use crate::target::Kernel;
use insula_base::error::{Error, Kind as ErrorKind};
use insula_driver::name::text;
use insula_driver::{BaseMapping, Driver, DriverError, Mapping};
use insula_node::{Handle, log_layout};
use kimage::log::{LayoutError, LogLayout, LogReader, Placement, format_record, locate};
use kimage::reference::Reference;
use kimage::running::RunningKernel;
use kimage::{ImageError, PhysicalMemory};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error as ThisError;

/// The base's memory.
const KCORE: &str = "/proc/kcore";
/// Where distributions keep the running kernel's file; `*` stands for its release.
const KERNEL_FILES: [&str; 2] = ["/boot/vmlinuz-*", "/usr/lib/modules/*/vmlinuz"];
/// Where they keep modules, in a folder for each release.
const MODULES: &str = "lib/modules";
const RELEASE_FILE: &str = "/proc/sys/kernel/osrelease";
const HINT: &str = "give the file of the running kernel by --kernel: one with KALLSYMS_ALL and \
                    DEBUG_INFO_BTF, like those of distributions";

/// Why a kernel cannot be watched.
#[derive(Debug, ThisError)]
pub(crate) enum WatchError {
    /// Its memory cannot be read.
    #[error("'{}' cannot be read", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its file cannot be read.
    #[error("the kernel's file '{}' cannot be read", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its file is no kernel that can be watched.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Its file does not say where its tables are.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There is no such kernel in the memory.
    #[error("no kernel of this file runs there")]
    NoKernel,
    /// The base has no known kernel file.
    #[error("none of the files is there: {0}")]
    NoFile(String),
}

/// A node's memory has no kernel of its image that has logged anything yet.
#[derive(Debug, Clone, Copy, ThisError)]
#[error("its kernel has not logged anything yet")]
pub struct NoKernel;

/// A kernel that can be watched: its memory, where it is in there, and its image.
#[derive(Debug)]
pub struct Watched {
    memory: Memory,
    layout: LogLayout,
    placement: Placement,
    reference: Result<Reference, String>,
    modules: ModuleFiles,
    not_mapped: Option<String>,
}

/// Files that a kernel is compared with, if they are not where they usually are.
#[derive(Debug, Default, Clone, Copy)]
pub struct OwnFiles<'a> {
    /// The kernel's.
    pub kernel: Option<&'a Path>,
    /// A folder with those of modules, besides the usual ones.
    pub modules: Option<&'a Path>,
}

/// Memory of either kind.
#[derive(Debug)]
enum Memory {
    /// The base's, read by system calls.
    Base(Kcore),
    /// The base's, mapped.
    MappedBase(BaseMapping),
    Node(Mapping),
}

impl Watched {
    /// The base, whose kernel has these files; by default where distributions keep them.
    ///
    /// # Errors
    /// When its memory or its kernel's file cannot be read, or do not belong together.
    pub fn base(files: OwnFiles<'_>) -> Result<Self, Error> {
        let failed = |error: WatchError| {
            let error = Error::new("the base cannot be watched").because(error);
            error.untouched().hint(HINT)
        };
        Self::open_base(files).map_err(failed)
    }

    fn open_base(files: OwnFiles<'_>) -> Result<Self, WatchError> {
        let memory = Kcore::open(Path::new(KCORE))?;
        let release = release()?;
        let path = match files.kernel {
            Some(path) => path.to_owned(),
            None => kernel_file(&release)?,
        };
        let (layout, reference) = read_kernel(&path)?;
        let image = memory.image;
        let placement = layout
            .placement(image.physical, image.address)
            .ok_or(WatchError::NoKernel)?;
        let (memory, not_mapped) = match map_base(&memory) {
            Ok(Some(mapping)) => (Memory::MappedBase(mapping), None),
            Ok(None) => (Memory::Base(memory), None),
            Err(error) => (Memory::Base(memory), Some(error.to_string())),
        };
        Ok(Self {
            memory,
            layout,
            placement,
            reference,
            modules: module_files(files, &release, None),
            not_mapped,
        })
    }

    /// A node, whose kernel has these files; by default the one that it was started from, and modules
    /// of its release in the base and in the folder that is its root. If the kernel's has changed
    /// since, code is not compared.
    ///
    /// # Errors
    /// When its memory cannot be read, or no kernel is found in it.
    pub fn node(handle: &Handle, files: OwnFiles<'_>) -> Result<Self, Error> {
        let name = text(&handle.info.name);
        let what = || format!("the node '{name}' cannot be watched");
        let memory = handle.node.memory().map_err(DriverError::from);
        let memory = memory
            .and_then(|memory| memory.map_for_reading())
            .map_err(|error| Error::new(what()).because(error).untouched())?;
        let layout = log_layout(handle)?;
        let placement = locate(&layout, &memory).ok_or_else(|| {
            let error = Error::new(what()).because(NoKernel);
            error.untouched().hint("try again")
        })?;
        let record = handle.record.as_ref();
        let file = files.kernel.or(record.map(|one| one.kernel.as_path()));
        let root = record.and_then(|one| one.root.as_deref());
        let release = record.map_or("", |one| one.release.as_str());
        let reference = match file.map(read_kernel) {
            Some(Ok((own, reference))) if own == layout => reference,
            Some(Ok(_)) => Err("its kernel's file is another one now".to_owned()),
            Some(Err(error)) => Err(error.to_string()),
            None => Err("its kernel's file is unknown".to_owned()),
        };
        Ok(Self {
            memory: Memory::Node(memory),
            layout,
            placement,
            reference,
            modules: module_files(files, release, root),
            not_mapped: None,
        })
    }

    /// Why the base's memory is not mapped, but read by system calls, though the module is there: a
    /// watcher on a node then sees nothing while the base hangs.
    #[must_use]
    pub fn not_mapped(&self) -> Option<&str> {
        self.not_mapped.as_deref()
    }

    /// Its tables, from its memory: as they were, if it is still the same kernel.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn kernel(&self) -> Result<Kernel<'_>, Error> {
        RunningKernel::attach(&self.layout, self.placement, self.memory()).map_err(|error| {
            let error = Error::new("the kernel cannot be watched").because(error);
            error.untouched().hint(HINT)
        })
    }

    /// The last records of its log, as lines.
    ///
    /// # Errors
    /// When it is not where it was.
    pub(crate) fn last_of_log(&self, count: usize) -> Result<Vec<String>, Error> {
        let mut reader = LogReader::new(&self.layout, self.placement, self.memory());
        // It may have stopped in the middle of a line.
        reader.set_stopped(true);
        let records = reader
            .last(count)
            .map_err(|error| Error::new("the kernel's log cannot be read").because(error))?;
        Ok(records.iter().map(format_record).collect())
    }

    /// Its image; or why there is none, so that code and constants are not compared.
    ///
    /// # Errors
    /// That reason.
    pub fn reference(&self) -> Result<&Reference, &str> {
        self.reference.as_ref().map_err(String::as_str)
    }

    /// Files of its modules.
    #[must_use]
    pub fn modules(&self) -> &ModuleFiles {
        &self.modules
    }

    /// Has what is read from now on be what is there then.
    pub fn refresh(&self) {
        if let Memory::Base(memory) = &self.memory {
            memory.refresh();
        }
    }

    fn memory(&self) -> &dyn PhysicalMemory {
        match &self.memory {
            Memory::Base(memory) => memory,
            Memory::MappedBase(memory) => memory,
            Memory::Node(memory) => memory,
        }
    }
}

/// Maps the base's memory; `None` without the module.
fn map_base(memory: &Kcore) -> Result<Option<BaseMapping>, Error> {
    let driver = match Driver::open() {
        Err(error) if error.kind == ErrorKind::NoModule => return Ok(None),
        driver => driver?,
    };
    let opened = driver.base_memory().map_err(DriverError::from);
    let mapped = opened.and_then(|opened| opened.map(&memory.ranges()));
    let failed = |error| Error::new("the base's memory cannot be mapped").because(error);
    mapped.map(Some).map_err(failed)
}

/// Layout of a kernel, and its image as reference, if it can serve as one.
fn read_kernel(path: &Path) -> Result<(LogLayout, Result<Reference, String>), WatchError> {
    let file = std::fs::read(path).map_err(|source| WatchError::File {
        path: path.to_owned(),
        source,
    })?;
    let vmlinux = kimage::vmlinux(&file)?;
    let layout = LogLayout::from_vmlinux(&vmlinux)?;
    let reference = Reference::from_vmlinux(&vmlinux);
    Ok((layout, reference.map_err(|error| error.to_string())))
}

/// The release of the running kernel.
fn release() -> Result<String, WatchError> {
    let release = std::fs::read_to_string(RELEASE_FILE).map_err(|source| WatchError::File {
        path: RELEASE_FILE.into(),
        source,
    })?;
    Ok(release.trim().to_owned())
}

/// The file of the running kernel.
fn kernel_file(release: &str) -> Result<PathBuf, WatchError> {
    let files = KERNEL_FILES.map(|file| file.replace('*', release));
    let found = files.iter().find(|file| Path::new(file).exists());
    found
        .map(PathBuf::from)
        .ok_or_else(|| WatchError::NoFile(files.join(", ")))
}

/// Files of the modules of a kernel, which has that folder as its root, if any.
fn module_files(files: OwnFiles<'_>, release: &str, root: Option<&Path>) -> ModuleFiles {
    let mut modules = ModuleFiles::default();
    if let Some(folder) = files.modules {
        modules.add(folder, Path::new("."));
    }
    // A release is one name.
    if !release.is_empty() && !release.contains('/') {
        for root in [Some(Path::new("/")), root].into_iter().flatten() {
            modules.add(root, &Path::new(MODULES).join(release));
        }
    }
    modules
}
