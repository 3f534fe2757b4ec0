//! Folders of the base as root of a node.

use std::io;
use std::path::{Path, PathBuf};

use insula_base::error::Error;

/// Where distributions install virtiofsd.
const PLACES: [&str; 3] = [
    "/usr/libexec/virtiofsd",
    "/usr/lib/virtiofsd",
    "/usr/lib/qemu/virtiofsd",
];
/// Name of the program.
const NAME: &str = "virtiofsd";

/// Finds the program.
///
/// # Errors
/// It is not installed.
pub fn find_virtiofsd() -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(NAME));
    let mut candidates = PLACES.into_iter().map(PathBuf::from).chain(found);
    candidates
        .find(|file| file.is_file())
        .ok_or_else(no_virtiofsd)
}

/// Why a folder cannot be a node's root.
fn refused(path: &Path, why: &str) -> Error {
    let what = format!("{} cannot be a node's root{why}", path.display());
    Error::new(what).untouched().about("rootfs")
}

/// Its name has a comma, which separates virtiofsd's options.
fn comma(path: &Path) -> Error {
    refused(path, ", since there is a comma in its name")
        .hint("rename it, or bind it to another place with `mount --bind`")
}

fn no_virtiofsd() -> Error {
    Error::new("there is no virtiofsd")
        .untouched()
        .about("rootfs")
        .hint("install it: package `virtiofsd`, or `qemu-system-common` on Debian 12")
}

/// A folder of the base that can be shared with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFolder(PathBuf);

impl SharedFolder {
    /// Checks the folder at `path`.
    ///
    /// # Errors
    /// Why it cannot be a root; nothing was touched.
    pub fn find(path: &Path) -> Result<Self, Error> {
        let no_folder = |source: io::Error| refused(path, "").because(source);
        let found = path.canonicalize().map_err(no_folder)?;
        if !found.is_dir() {
            return Err(no_folder(io::ErrorKind::NotADirectory.into()));
        }
        if found.as_os_str().as_encoded_bytes().contains(&b',') {
            return Err(comma(&found));
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
