//! Fetches a kernel and its modules, headers and disk into the build folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::built::{self, BuildError};
use super::initrd::{self, InitrdError};
use super::{Flavour, Kernel, beside, headers_of, tree_of, write_whole};
use crate::host::ext4::{self, Ext4Error};
use crate::host::packages::{self, PackageError};
use crate::host::tool::{Tool, ToolError};

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
                None => download(flavour, progress)?,
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

/// Downloads the kernel and its headers, and makes both usable where they are.
fn download(flavour: Flavour, progress: &mut dyn FnMut(&str)) -> Result<Kernel, FetchError> {
    let image = first(flavour.package(), "linux-image-")?;
    let release = image["linux-image-".len()..].to_owned();
    let kernel = Kernel { flavour, release };
    progress(&format!(
        "fetching kernel {} and its headers",
        kernel.release
    ));

    let headers = format!("linux-headers-{}", kernel.release);
    let common = first(&headers, "linux-headers-")?;
    let kbuild = first(&headers, "linux-kbuild-")?;
    for (folder, names) in [
        (tree_of(flavour), vec![image]),
        (headers_of(flavour), vec![headers, common.clone(), kbuild]),
    ] {
        remove(&folder)?;
        packages::unpack(&names, &folder)?;
    }
    redirect_makefile(&kernel.headers(), &common)?;
    Tool::new("depmod")
        .arg("-b")
        .arg(kernel.tree())
        .arg(&kernel.release)
        .run()?;
    Ok(kernel)
}

/// First dependency of `package` whose name starts with `prefix`.
fn first(package: &str, prefix: &str) -> Result<String, FetchError> {
    let found = packages::dependencies(package)?
        .into_iter()
        .find(|name| name.starts_with(prefix));
    let wanted = || PackageError::Unknown {
        wanted: format!("{prefix}…, which {package} needs"),
    };
    Ok(found.ok_or_else(wanted)?)
}

/// Rewrites the include of the common Makefile, which names its place in an installed system: here
/// it lies beside the headers.
fn redirect_makefile(headers: &Path, common: &str) -> Result<(), FetchError> {
    let path = headers.join("Makefile");
    let text = format!("include $(dir $(lastword $(MAKEFILE_LIST)))../{common}/Makefile\n");
    fs::write(&path, text).map_err(at(&path))
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
fn remove(path: &Path) -> Result<(), FetchError> {
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

fn at(path: &Path) -> impl FnOnce(io::Error) -> FetchError + use<> {
    let path = path.to_owned();
    |source| FetchError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makefile_points_beside() {
        let folder = tempfile::tempdir().unwrap();
        redirect_makefile(folder.path(), "linux-headers-1-common").unwrap();
        let text = fs::read_to_string(folder.path().join("Makefile")).unwrap();
        assert!(
            text.ends_with("../linux-headers-1-common/Makefile\n"),
            "{text}"
        );
    }
}
