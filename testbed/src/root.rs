//! The emulated machine's root disk: a small Debian 12, made without privileges.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::project;
use crate::tool::{Tool, ToolError};

/// Size of a block of the disk, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Files that the disk can hold.
const INODES: u32 = 1 << 17;
/// Changed when the way of making the disk changes in another respect than its
/// recipe.
const REVISION: u32 = 1;

/// What is installed beyond the essential packages.
const PACKAGES: &[&str] = &[
    "busybox-static",
    "iproute2",
    "kmod",
    "kexec-tools",
    "less",
    "numactl",
    "pciutils",
    "procps",
    "stress-ng",
];
/// And for benchmarks.
const BENCH_PACKAGES: &[&str] = &["fio", "qemu-system-x86", "seabios"];

/// Which root disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// What tests need.
    #[default]
    Test,
    /// That, and what benchmarks compare with.
    Bench,
}

/// Why there is no root disk.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Root {
    /// The disk's image, made if there is none of the present recipe. `tell` gets
    /// a line before what takes long.
    ///
    /// # Errors
    /// When Debian's packages cannot be had, or the image cannot be made.
    pub fn image(self, tell: &mut dyn FnMut(&str)) -> Result<PathBuf, RootError> {
        let folder = project::build().join("root");
        let image = folder.join(format!("{self}.ext4"));
        let note = folder.join(format!("{self}.recipe"));
        let recipe = self.recipe();
        if image.exists() && fs::read_to_string(&note).is_ok_and(|made| made == recipe) {
            return Ok(image);
        }
        tell(&format!(
            "making the `{self}` root disk of Debian's packages (under a minute)"
        ));
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let work = tempfile::tempdir_in(&folder).map_err(at(&folder))?;
        let made = self.make(work.path())?;
        fs::rename(made, &image).map_err(at(&image))?;
        fs::write(&note, recipe).map_err(at(&note))?;
        Ok(image)
    }

    fn packages(self) -> Vec<&'static str> {
        let extra = match self {
            Self::Test => &[],
            Self::Bench => BENCH_PACKAGES,
        };
        [PACKAGES, extra].concat()
    }

    fn size_bytes(self) -> u64 {
        match self {
            Self::Test => 2 << 30,
            Self::Bench => 4 << 30,
        }
    }

    /// Changes whenever the disk must be made anew.
    fn recipe(self) -> String {
        let packages = self.packages().join(" ");
        format!(
            "revision {REVISION}\nsize {}\npackages {packages}\n",
            self.size_bytes()
        )
    }

    /// mmdebstrap gives a tar (as root, or in a user name space), genext2fs a file
    /// system of it, with owners and device nodes that a user could not make.
    fn make(self, work: &Path) -> Result<PathBuf, ToolError> {
        let (tree, image) = (work.join("root.tar"), work.join("image"));
        Tool::new("mmdebstrap")
            .args(["--quiet", "--variant=minbase"])
            .arg("--aptopt=Acquire::Languages none")
            .arg("--dpkgopt=path-exclude=/usr/share/doc/*")
            .arg("--dpkgopt=path-exclude=/usr/share/man/*")
            .arg(format!("--include={}", self.packages().join(",")))
            .arg("bookworm")
            .arg(&tree)
            .run()?;
        Tool::new("genext2fs")
            .arg(format!("--block-size={BLOCK_BYTES}"))
            .arg(format!(
                "--size-in-blocks={}",
                self.size_bytes() / BLOCK_BYTES
            ))
            .arg(format!("--number-of-inodes={INODES}"))
            .args(["--allow-holes", "--tarball"])
            .args([&tree, &image])
            .run()?;
        // ext2 until here. Files written from now on are laid out as ext4's.
        Tool::new("tune2fs")
            .args(["-O", "extents"])
            .arg(&image)
            .run()?;
        Ok(image)
    }
}

impl fmt::Display for Root {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Test => "test",
            Self::Bench => "bench",
        })
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> RootError + use<> {
    let path = path.to_owned();
    |source| RootError::File { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_differ() {
        assert_ne!(Root::Test.recipe(), Root::Bench.recipe());
        assert!(Root::Bench.packages().len() > Root::Test.packages().len());
    }
}
