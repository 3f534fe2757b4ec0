//! What test nodes boot beside a kernel: an initial file system of busybox, the
//! drivers of the power button and of devices, and a script that tells that the node
//! is alive and does what its command line says.

use std::path::{Path, PathBuf};

use insula::image::{Initramfs, ModulesError, modules_with_needs};

use crate::busybox::{self, BusyboxError};
use crate::kernels::Kernel;
use crate::module;

/// The drivers that serve a purpose, by its name: a press of the power button is to be
/// an event that a program can read, an NVMe drive and a virtio network card are to work,
/// sockets to the base, and in a virtual machine the virtio devices of QEMU's `microvm`.
const MODULES: [(&str, &[&str]); 5] = [
    ("button", &["button", "evdev"]),
    ("disk", &["nvme"]),
    ("network", &["virtio_pci", "virtio_net"]),
    ("vsock", &["vmw_vsock_virtio_transport"]),
    ("mmio", &["virtio_mmio"]),
];
const INIT: &[u8] = include_bytes!("../node/init");
const DEVICES: &[u8] = include_bytes!("../node/devices");
/// A shell function that measures a disk: `speed DISK`, which is overwritten.
pub const SPEED: &str = include_str!("../node/speed");
/// Shell functions that work without end on one core: `work FOLDER`, which tells how long each
/// piece took, and `burden FOLDER`, which is in the way of others.
pub const WORK: &str = include_str!("../node/work");

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
    Ok(usual(kernels)?.finish()?)
}

/// The same with what a node needs to talk to the base: the modules for each kernel, by the folders
/// that they were built in, and the program that does.
///
/// # Errors
/// As of [`initrd`], or when a file cannot be read.
pub fn peer_initrd(
    kernels: &[Kernel],
    modules: &[PathBuf],
    peer: &Path,
) -> Result<Vec<u8>, NodeInitrdError> {
    let mut archive = usual(kernels)?
        .program("bin/insula-peer", &std::fs::read(peer)?)?
        .directory("lib/insula")?;
    for (kernel, module) in kernels.iter().zip(modules) {
        archive = archive.directory(&format!("lib/insula/{}", kernel.release))?;
        for name in module::BUILT {
            let inside = format!("lib/insula/{}/{name}", kernel.release);
            archive = archive.file(&inside, &std::fs::read(module.join(name))?)?;
        }
    }
    Ok(archive.finish()?)
}

fn usual(kernels: &[Kernel]) -> Result<Initramfs, NodeInitrdError> {
    let mut archive = Initramfs::default();
    for folder in ["bin", "dev", "proc", "sys", "lib", "lib/modules"] {
        archive = archive.directory(folder)?;
    }
    for kernel in kernels {
        let folder = format!("lib/modules/{}", kernel.release);
        archive = archive.directory(&folder)?;
        for (purpose, names) in MODULES {
            let mut list = String::new();
            for module in modules_with_needs(&kernel.modules(), names)? {
                archive = archive.file(&format!("{folder}/{}", module.file), &module.content)?;
                list.push_str(&format!("{}\n", module.file));
            }
            archive = archive.file(&format!("{folder}/{purpose}"), list.as_bytes())?;
        }
    }
    let archive = archive
        .program("init", INIT)?
        .file("devices", DEVICES)?
        .file("speed", SPEED.as_bytes())?
        .file("work", WORK.as_bytes())?;
    Ok(archive.program("bin/busybox", &busybox::program()?)?)
}
