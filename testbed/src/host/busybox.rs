//! Statically linked busybox for initial file systems.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::packages::{self, PackageError};
use super::project;

/// Failure to provide busybox.
#[derive(Debug, thiserror::Error)]
pub enum BusyboxError {
    /// Its package could not be fetched.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// It could not be read.
    #[error("{path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// The program, fetched on first use.
///
/// # Errors
/// When the package cannot be fetched or read.
pub fn program() -> Result<Vec<u8>, BusyboxError> {
    let folder = project::build().join("busybox");
    let path = folder.join("bin/busybox");
    if !path.exists() {
        packages::unpack(&["busybox-static".to_owned()], &folder)?;
    }
    fs::read(&path).map_err(|source| BusyboxError::Read { path, source })
}
