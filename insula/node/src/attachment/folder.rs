//! Folders of the base as root of a node.

use std::io;
use std::path::{Path, PathBuf};

/// Where distributions install virtiofsd.
const PLACES: [&str; 3] = [
    "/usr/libexec/virtiofsd",
    "/usr/lib/virtiofsd",
    "/usr/lib/qemu/virtiofsd",
];
/// Name of the program.
const NAME: &str = "virtiofsd";

/// virtiofsd is not installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no virtiofsd; nothing was touched\n\
     install it: package `virtiofsd`, or `qemu-system-common` on Debian 12"
)]
pub struct VirtiofsdMissing;

/// Finds the program.
///
/// # Errors
/// [`VirtiofsdMissing`].
pub fn find_virtiofsd() -> Result<PathBuf, VirtiofsdMissing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(NAME));
    let mut candidates = PLACES.into_iter().map(PathBuf::from).chain(found);
    candidates
        .find(|file| file.is_file())
        .ok_or(VirtiofsdMissing)
}

/// Why a folder cannot be a node's root.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It is not a folder.
    #[error("{} cannot be a node's root: {source}; nothing was touched", path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its name has a comma, which separates virtiofsd's options.
    #[error(
        "{} cannot be a node's root, since there is a comma in its name; nothing was touched\n\
         rename it, or bind it to another place with `mount --bind`", .0.display()
    )]
    Comma(PathBuf),
    /// virtiofsd is not installed.
    #[error(transparent)]
    VirtiofsdMissing(#[from] VirtiofsdMissing),
}

/// A folder of the base that can be shared with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFolder(PathBuf);

impl SharedFolder {
    /// Checks the folder at `path`.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn find(path: &Path) -> Result<Self, FolderError> {
        let no_folder = |source| FolderError::NoFolder {
            path: path.to_owned(),
            source,
        };
        let found = path.canonicalize().map_err(no_folder)?;
        if !found.is_dir() {
            return Err(no_folder(io::ErrorKind::NotADirectory.into()));
        }
        if found.as_os_str().as_encoded_bytes().contains(&b',') {
            return Err(FolderError::Comma(found));
        }
        find_virtiofsd()?;
        Ok(Self(found))
    }

    /// Its path, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}
