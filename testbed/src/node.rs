//! What test nodes boot beside a kernel: an initial file system of busybox, the
//! drivers of the power button, and a script that tells that the node is alive and
//! does what its command line says.

use crate::busybox::{self, BusyboxError};
use crate::initramfs::Initramfs;
use crate::kernels::{Kernel, ModulesError, modules};

/// What makes a press of the power button an event that a program can read.
const MODULES: [&str; 2] = ["button", "evdev"];
const INIT: &[u8] = include_bytes!("../node/init");

/// Why the nodes' initial file system could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NodeInitrdError {
    /// There is no busybox to put in.
    #[error(transparent)]
    Busybox(#[from] BusyboxError),
    /// A kernel's modules could not be had.
    #[error(transparent)]
    Modules(#[from] ModulesError),
    /// It does not fit the format.
    #[error("the nodes' initial file system cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

/// The initial file system of nodes with one of these kernels, a cpio archive.
///
/// # Errors
/// When busybox or the kernels' modules cannot be had.
pub fn initrd(kernels: &[Kernel]) -> Result<Vec<u8>, NodeInitrdError> {
    let mut archive = Initramfs::default();
    for folder in ["bin", "dev", "proc", "sys", "lib", "lib/modules"] {
        archive = archive.directory(folder)?;
    }
    for kernel in kernels {
        let folder = format!("lib/modules/{}", kernel.release);
        archive = archive.directory(&folder)?;
        for module in modules::with_needs(kernel, &MODULES)? {
            archive = archive.file(&format!("{folder}/{}", module.file), &module.content)?;
        }
    }
    let archive = archive
        .program("init", INIT)?
        .program("bin/busybox", &busybox::program()?)?;
    Ok(archive.finish()?)
}
