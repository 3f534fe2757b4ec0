//! Debian's kernels: as the base of an emulated machine, as what nodes boot, and as what insula.ko
//! is built against. Some are built from Debian's source with a sanitizer: as the base only. One is the newest
//! of all, for long runs.

mod built;
mod download;
mod fetch;
mod flavour;
mod initrd;
mod newer_tools;

use std::path::{Path, PathBuf};

pub use built::BuildError;
pub use fetch::{FetchError, fetch};
pub use flavour::{Flavour, Sanitizer, UnknownFlavour};
pub use initrd::InitrdError;
pub(crate) use initrd::add_modules;

use super::project;

/// A kernel in the build folder.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name.
    pub flavour: Flavour,
    /// Its `uname -r`.
    pub release: String,
}

impl Kernel {
    /// Unpacked kernel package: boot/ and lib/modules/.
    pub fn tree(&self) -> PathBuf {
        tree_of(self.flavour)
    }

    /// Kernel image, a bzImage.
    pub fn vmlinuz(&self) -> PathBuf {
        self.tree().join(format!("boot/vmlinuz-{}", self.release))
    }

    /// Loadable modules, with depmod's files.
    pub fn modules(&self) -> PathBuf {
        self.tree().join("lib/modules").join(&self.release)
    }

    /// Folder to build modules against: `make -C` this.
    pub fn headers(&self) -> PathBuf {
        match self.flavour.sanitizer() {
            Some(_) => built::objects_of(self.flavour),
            None => {
                headers_of(self.flavour).join(format!("usr/src/linux-headers-{}", self.release))
            }
        }
    }

    /// ext4 image of [`Kernel::tree`], for a disk of an emulated machine.
    pub fn disk(&self) -> PathBuf {
        beside(self.flavour, "ext4")
    }

    /// Initial file system with which it boots as the base.
    pub fn initrd(&self) -> PathBuf {
        beside(self.flavour, "initrd")
    }
}

/// Folder of a kernel. Kernels built here have one apart, since they are no distribution's, and so has the newest:
/// host tests take all kernels in the usual one, and must not depend on what Debian changes.
fn folder_of(flavour: Flavour) -> PathBuf {
    project::build().join(match (flavour, flavour.sanitizer()) {
        (Flavour::Unstable, _) => "newest-kernel",
        (_, Some(_)) => "built-kernels",
        (_, None) => "kernels",
    })
}

fn tree_of(flavour: Flavour) -> PathBuf {
    folder_of(flavour).join(flavour.name())
}

fn headers_of(flavour: Flavour) -> PathBuf {
    project::build().join("headers").join(flavour.name())
}

/// File that belongs to the kernel's tree and lies beside it.
fn beside(flavour: Flavour, extension: &str) -> PathBuf {
    folder_of(flavour).join(format!("{}.{extension}", flavour.name()))
}

/// Writes `content` to `path` atomically: a reader finds either all of it or no file.
fn write_whole(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    std::fs::write(&partial, content)?;
    std::fs::rename(&partial, path)
}
