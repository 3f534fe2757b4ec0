//! Root disk of the emulated machine: a small Debian 12, made without privileges.

mod cache;
mod conformance;
mod installed;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use conformance::{CONFORMANCE, CRICTL, KUBELET, PODMAN_TESTS, TESTS};
pub use installed::DEBS;

use super::debs::DebsError;
use super::kernels::FetchError;
use super::packages::PackageError;
use super::tool::{Tool, ToolError};
use cache::cached;

/// Size of a block of the disk, in bytes.
const BLOCK_BYTES: u64 = 4096;
/// Most files that the disk can hold.
const INODES: u32 = 1 << 17;
/// Changed when the disk is made differently from the same recipe.
const REVISION: u32 = 1;

/// Packages beyond the essential ones. fasttree is a program of OpenMP, fzf one of Go: they run on
/// the lightweight kernel, as openssl, python3, redis, sqlite3 and stress-ng do.
const PACKAGES: &[&str] = &[
    "bonnie++",
    "busybox-static",
    "crun",
    "dnsmasq-base",
    "e2fsprogs",
    "fasttree",
    "fio",
    "fzf",
    "gdb-minimal",
    "iproute2",
    "iptables",
    "kmod",
    "kexec-tools",
    "less",
    "libfuse3-3",
    "libglib2.0-0",
    "libgnutls30",
    "libseccomp2",
    "liburing2",
    "nftables",
    "nginx",
    "numactl",
    "openssl",
    "pciutils",
    "postmark",
    "procps",
    "python3-drgn",
    "redis-server",
    "sqlite3",
    "stress-ng",
];
/// Further packages for benchmarks, and for containers of podman and containerd.
const BENCH_PACKAGES: &[&str] = &[
    "catatonit",
    "containerd",
    "netavark",
    "podman",
    "qemu-system-x86",
    "runc",
    "seabios",
];

/// Further packages for the scenarios that compare OCI runtimes, also by podman's tests and a registry for these, and use
/// Kubernetes' runtime interface.
const CONFORMANCE_PACKAGES: &[&str] = &[
    "aardvark-dns",
    "bats",
    "catatonit",
    "containerd",
    "containernetworking-plugins",
    "curl",
    "docker-registry",
    "jq",
    "netavark",
    "netcat-openbsd",
    "podman",
    "runc",
    "slirp4netns",
    "socat",
    "tzdata",
];

/// Further packages for the scenarios whose subject are large programs.
const APPLICATION_PACKAGES: &[&str] = &[
    "caddy",
    "gcc",
    "git",
    "libc6-dev",
    "libmpich-dev",
    "libopenmpi-dev",
    "make",
    "mpich",
    "nodejs",
    "openjdk-17-jre-headless",
    "openmpi-bin",
    "openssh-client",
    "openssh-server",
    "postgresql-15",
];

/// Makes folders in which packages of Java and PostgreSQL put links when they are installed.
const MANUAL_FOLDERS: &str = "mkdir -p \"$1/usr/share/man/man1\" \"$1/usr/share/man/man7\"";

/// Kind of root disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// For tests.
    #[default]
    Test,
    /// For tests, with the systems that benchmarks compare with.
    Bench,
    /// For tests, with large programs: compilers, a database server, implementations of MPI.
    Applications,
    /// For tests, with the validation tests of the OCI and those of podman, other runtimes, and Kubernetes' runtime interface.
    Conformance,
    /// The project installed by its packages, under systemd.
    Installed,
}

/// Failure to make a root disk.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The project's packages could not be built.
    #[error(transparent)]
    Debs(#[from] DebsError),
    /// Packages could not be fetched.
    #[error(transparent)]
    Package(#[from] PackageError),
    /// A kernel could not be fetched.
    #[error(transparent)]
    Kernel(#[from] FetchError),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

impl Root {
    /// Image of the disk, made if there is none of the current recipe. `progress` gets a line
    /// before what takes long.
    ///
    /// # Errors
    /// When Debian's packages cannot be fetched, or the image cannot be made.
    pub fn image(self, progress: &mut dyn FnMut(&str)) -> Result<PathBuf, RootError> {
        match self {
            Self::Installed => return installed::image(progress),
            Self::Conformance => return conformance::image(progress),
            _ => {}
        }
        cached(&format!("{self}.ext4"), &self.recipe(), |work| {
            progress(&format!(
                "making the `{self}` root disk of Debian's packages (under a minute)"
            ));
            Ok(self.make(work)?)
        })
    }

    fn packages(self) -> Vec<&'static str> {
        match self {
            Self::Test => PACKAGES.to_vec(),
            Self::Bench => [PACKAGES, BENCH_PACKAGES].concat(),
            Self::Applications => [PACKAGES, APPLICATION_PACKAGES].concat(),
            Self::Conformance => [PACKAGES, CONFORMANCE_PACKAGES].concat(),
            Self::Installed => installed::PACKAGES.to_vec(),
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            Self::Test => 2 << 30,
            Self::Applications | Self::Bench | Self::Conformance | Self::Installed => 4 << 30,
        }
    }

    /// Recipe of the disk: if it changes, the disk is made again.
    fn recipe(self) -> String {
        let packages = self.packages().join(" ");
        format!(
            "revision {REVISION}\nsize {}\npackages {packages}\n",
            self.size_bytes()
        )
    }

    fn make(self, work: &Path) -> Result<PathBuf, ToolError> {
        let (tree, image) = (work.join("root.tar"), work.join("image"));
        let parts = ["doc", "man"].into_iter();
        let mut options: Vec<String> = parts
            .map(|part| format!("--dpkgopt=path-exclude=/usr/share/{part}/*"))
            .collect();
        if self == Self::Applications {
            options.push(format!("--essential-hook={MANUAL_FOLDERS}"));
        }
        debian(&self.packages(), &options, &tree)?;
        disk(&tree, self.size_bytes(), &image)?;
        Ok(image)
    }
}

/// Makes a tar of a Debian with these packages: as root, or in a user namespace.
fn debian(packages: &[&str], options: &[impl AsRef<OsStr>], tree: &Path) -> Result<(), ToolError> {
    Tool::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase"])
        .arg("--aptopt=Acquire::Languages none")
        .args(options)
        .arg(format!("--include={}", packages.join(",")))
        .arg("bookworm")
        .arg(tree)
        .run()?;
    Ok(())
}

/// Makes a disk from a tar. genext2fs sets owners and makes device nodes without privileges.
fn disk(tree: &Path, size_bytes: u64, image: &Path) -> Result<(), ToolError> {
    // Some packages have files whose names are not ASCII.
    Tool::new("genext2fs")
        .env("LC_ALL", "C.UTF-8")
        .arg(format!("--block-size={BLOCK_BYTES}"))
        .arg(format!("--size-in-blocks={}", size_bytes / BLOCK_BYTES))
        .arg(format!("--number-of-inodes={INODES}"))
        .args(["--allow-holes", "--tarball"])
        .args([tree, image])
        .run()?;
    // ext2 until here. Files written from now on use ext4's layout.
    Tool::new("tune2fs")
        .args(["-O", "extents"])
        .arg(image)
        .run()?;
    Ok(())
}

impl fmt::Display for Root {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Test => "test",
            Self::Bench => "bench",
            Self::Applications => "applications",
            Self::Conformance => "conformance",
            Self::Installed => "installed",
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
