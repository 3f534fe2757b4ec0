//! Initial file system of test nodes: busybox, the drivers of the power button and of devices, and
//! a script that reports that the node is alive and does what its command line says.

use std::path::{Path, PathBuf};

use insula_base::error::Error;
use insula_image::{Initramfs, modules_with_dependencies};

use super::module;
use crate::host::busybox::{self, BusyboxError};
use crate::host::kernels::Kernel;
use crate::node;

/// Drivers by purpose: a press of the power button is to be an event that a program can read; an
/// NVMe drive, a virtio network card and sockets to the base are to work, and in a virtual machine
/// the virtio devices of QEMU's `microvm`, a disk among them.
const MODULES: [(&str, &[&str]); 6] = [
    ("button", &["button", "evdev"]),
    ("disk", &["nvme"]),
    ("network", &["virtio_pci", "virtio_net"]),
    ("vsock", &["vmw_vsock_virtio_transport"]),
    ("mmio", &["virtio_mmio"]),
    ("block", &["virtio_blk"]),
];

/// Failure to make the nodes' initial file system.
#[derive(Debug, thiserror::Error)]
pub enum NodeInitrdError {
    /// busybox could not be fetched.
    #[error(transparent)]
    Busybox(#[from] BusyboxError),
    /// A kernel's modules could not be found.
    #[error(transparent)]
    Modules(#[from] Error),
    /// It does not fit the format.
    #[error("the nodes' initial file system cannot be written: {0}")]
    Write(#[from] std::io::Error),
}

/// Initial file system of nodes with one of these kernels, a cpio archive.
///
/// # Errors
/// When busybox or the kernels' modules cannot be fetched.
pub fn initrd(kernels: &[Kernel]) -> Result<Vec<u8>, NodeInitrdError> {
    Ok(usual(kernels)?.finish()?)
}

/// The same, with the modules for each kernel, by the folders that they were built in, and the
/// program `insula-peer`, to talk to the base; and with a driver that attacks it.
///
/// # Errors
/// As [`initrd`], or when a file cannot be read.
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
        let name = module::HOSTILE_DRIVER;
        let hostile = module::test_driver(module).join(name);
        let inside = format!("lib/insula/{}/{name}", kernel.release);
        archive = archive.file(&inside, &std::fs::read(hostile)?)?;
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
            for module in modules_with_dependencies(&kernel.modules(), names)? {
                archive = archive.file(&format!("{folder}/{}", module.file), &module.content)?;
                list.push_str(&format!("{}\n", module.file));
            }
            archive = archive.file(&format!("{folder}/{purpose}"), list.as_bytes())?;
        }
    }
    let archive = archive
        .program("init", node::INIT)?
        .file("devices", node::DEVICES)?
        .file("speed", node::SPEED.as_bytes())?
        .file("work", node::WORK.as_bytes())?;
    Ok(archive.program("bin/busybox", &busybox::program()?)?)
}
