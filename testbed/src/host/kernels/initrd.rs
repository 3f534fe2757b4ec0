//! Initial file system with which a kernel boots as the base of an emulated machine. It mounts the
//! root disk; on kernels that have NVMe or ext4 as modules it loads these first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use insula_base::error::Error;
use insula_image::{Initramfs, modules_with_dependencies};

use super::{Kernel, write_whole};
use crate::host::busybox::{self, BusyboxError};

/// Modules needed to mount the root disk, in modprobe's names. Those of the second line ext4
/// requests by name while it mounts.
const MODULES: [&str; 4] = [
    "nvme",
    "ext4", //
    "crc32c_generic",
    "crc32c_intel",
];
const INIT: &[u8] = include_bytes!("../../base/initramfs-init");
/// First process on the root disk, which is thus plain Debian.
const ROOT_INIT: &[u8] = include_bytes!("../../base/init");

/// Failure to make the initial file system.
#[derive(Debug, thiserror::Error)]
pub enum InitrdError {
    /// busybox could not be fetched.
    #[error(transparent)]
    Busybox(#[from] BusyboxError),
    /// A module could not be found.
    #[error(transparent)]
    Modules(#[from] Error),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// Makes the kernel's initial file system, if its parts have changed.
pub(super) fn make(kernel: &Kernel) -> Result<(), InitrdError> {
    let bytes = archive(kernel)?;
    let path = kernel.initrd();
    if fs::read(&path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    write_whole(&path, &bytes).map_err(at(&path))
}

fn archive(kernel: &Kernel) -> Result<Vec<u8>, InitrdError> {
    let busybox = busybox::program()?;
    let path = kernel.initrd();
    let fail = |source| InitrdError::File {
        path: path.clone(),
        source,
    };
    let mut archive = Initramfs::default();
    for folder in ["bin", "dev", "proc", "sys", "root", "lib"] {
        archive = archive.directory(folder).map_err(fail)?;
    }
    archive = archive.program("init", INIT).map_err(fail)?;
    archive = archive.program("root-init", ROOT_INIT).map_err(fail)?;
    archive = archive.program("bin/busybox", &busybox).map_err(fail)?;
    add_modules(archive, kernel, &MODULES)?
        .finish()
        .map_err(fail)
}

/// Adds modules of a kernel, with those that they need, to an archive that has the folder `lib`; their list, in the
/// order of loading, is the file `modules`.
///
/// # Errors
/// When a module is not found, or cannot be added.
pub(crate) fn add_modules(
    mut archive: Initramfs,
    kernel: &Kernel,
    names: &[&str],
) -> Result<Initramfs, InitrdError> {
    let path = kernel.initrd();
    let fail = |source| InitrdError::File {
        path: path.clone(),
        source,
    };
    let mut list = String::new();
    for module in modules_with_dependencies(&kernel.modules(), names)? {
        let name = format!("lib/{}", module.file);
        archive = archive.file(&name, &module.content).map_err(fail)?;
        list.push_str(&format!("/{name}\n"));
    }
    archive.file("modules", list.as_bytes()).map_err(fail)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> InitrdError + use<> {
    let path = path.to_owned();
    |source| InitrdError::File { path, source }
}
