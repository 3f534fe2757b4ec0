//! Folders of the base that are shared with a node: its root, its volumes.

use std::io;
use std::path::{Path, PathBuf};

use insula_base::error::Error;

/// Where distributions install virtiofsd, which is in no folder of programs there.
pub const VIRTIOFSD_PLACES: [&str; 3] = [
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
    let mut candidates = VIRTIOFSD_PLACES.into_iter().map(PathBuf::from).chain(found);
    candidates
        .find(|file| file.is_file())
        .ok_or_else(no_virtiofsd)
}

fn no_virtiofsd() -> Error {
    Error::new("there is no virtiofsd")
        .untouched()
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
        Self::find_as(path, "rootfs", "a node's root")
    }

    /// The same for what is asked for by another option, and is something else.
    ///
    /// # Errors
    /// Why it cannot be that; nothing was touched.
    pub fn find_as(path: &Path, option: &'static str, what: &str) -> Result<Self, Error> {
        let refused = |path: &Path, why: &str| {
            let what = format!("{} cannot be {what}{why}", path.display());
            Error::new(what).untouched().about(option)
        };
        let no_folder = |source: io::Error| refused(path, "").because(source);
        let found = path.canonicalize().map_err(no_folder)?;
        if !found.is_dir() {
            return Err(no_folder(io::ErrorKind::NotADirectory.into()));
        }
        // It separates virtiofsd's options.
        if found.as_os_str().as_encoded_bytes().contains(&b',') {
            let hint = "rename it, or bind it to another place with `mount --bind`";
            return Err(refused(&found, ", since there is a comma in its name").hint(hint));
        }
        find_virtiofsd().map_err(|error| error.about(option))?;
        Ok(Self(found))
    }

    /// Its path, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}
