//! Fetches a kernel and its modules, headers and disk into the build folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::built::{self, BuildError};
use super::initrd::{self, InitrdError};
use super::{Flavour, Kernel, beside, download, write_whole};
use crate::host::ext4::{self, Ext4Error};
use crate::host::packages::PackageError;
use crate::host::tool::ToolError;

/// Failure to fetch a kernel.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Its packages could not be fetched.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// It could not be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its initial file system could not be made.
    #[error(transparent)]
    Initrd(#[from] InitrdError),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// The kernel, fetched if it is not there yet. `progress` gets a line before each step that takes
/// long.
///
/// # Errors
/// When packages cannot be fetched or unpacked; existing files stay usable.
pub fn fetch(flavour: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Kernel, FetchError> {
    let note = beside(flavour, "release");
    let kernel = match fs::read_to_string(&note) {
        Ok(release) if built::is_current(flavour) => Kernel { flavour, release },
        _ => {
            let kernel = match flavour.sanitizer() {
                Some(sanitizer) => built::build(flavour, sanitizer, progress)?,
                None => download::download(flavour, progress)?,
            };
            for extension in ["ext4", "initrd"] {
                remove(&beside(flavour, extension))?;
            }
            write_whole(&note, kernel.release.as_bytes()).map_err(at(&note))?;
            kernel
        }
    };
    if !kernel.disk().exists() {
        progress(&format!("making a disk of kernel {}", kernel.release));
        make_disk(&kernel)?;
    }
    initrd::make(&kernel)?;
    Ok(kernel)
}

/// Makes the disk with the kernel's tree.
fn make_disk(kernel: &Kernel) -> Result<(), FetchError> {
    let tree = kernel.tree();
    let partial = beside(kernel.flavour, "partial");
    ext4::make(&tree, &partial).map_err(|error| match error {
        Ext4Error::Tree(source) => at(&tree)(source),
        Ext4Error::Tool(error) => error.into(),
    })?;
    fs::rename(&partial, kernel.disk()).map_err(at(&partial))
}

/// Removes a file or a folder, if there is one.
pub(super) fn remove(path: &Path) -> Result<(), FetchError> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> FetchError + use<> {
    let path = path.to_owned();
    |source| FetchError::File { path, source }
}
