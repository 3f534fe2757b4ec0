//! Building the project's own programs for the emulated machine.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::host::project;
use crate::host::tool::{Tool, ToolError};

/// The only supported architecture.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Static, and at a fixed address, so that an emulator can reuse the translation of a program at
/// its next start.
const STATIC: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Failure to build the programs.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// Cargo failed, or another program.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A built program could not be stripped.
    #[error("the built programs cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// The programs, linked statically so that they need nothing of the root disk.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Command `insula`.
    pub insula: PathBuf,
    /// Runs tests inside.
    pub scenario: PathBuf,
    /// Runs in a node to talk to the base.
    pub peer: PathBuf,
    /// Runs on the base and on a lightweight kernel, to compare both.
    pub probe: PathBuf,
    /// The guide's server on a lightweight kernel.
    pub notes: PathBuf,
    /// A file server for one.
    pub files: PathBuf,
    /// A block server for one.
    pub blocks: PathBuf,
    /// A network server for one.
    pub network: PathBuf,
    /// First process of a node started from a container image or folder.
    pub agent: PathBuf,
    /// Becomes a program's proxy in a container.
    pub proxy: PathBuf,
    /// Lightweight kernel.
    pub lwk: PathBuf,
    /// The monitor of confined nodes.
    pub vmm: PathBuf,
    /// A kernel that attacks its machine.
    pub hostile: PathBuf,
}

/// Builds them, as far as they have changed. `progress` gets a line if that takes minutes.
///
/// # Errors
/// When cargo fails.
pub fn build(progress: &mut dyn FnMut(&str)) -> Result<Programs, ProgramsError> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = project::root().join(target.unwrap_or_else(|| "target".into()));
    let folder = target.join(TARGET).join("release");
    if !folder.exists() {
        progress("building the programs for the machine (a few minutes, the first time)");
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Naming the target keeps these flags from build scripts and macros.
    Tool::new(&cargo)
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--package", "insula", "--bin", "insula"])
        .args(["--package", "insula-agent", "--bin", "insula-agent"])
        .args(["--package", "insula-exec", "--bin", "insula-proxy"])
        .args(["--package", "insula-server"])
        .args(["--bin", "insula-files", "--bin", "insula-blocks"])
        .args(["--bin", "insula-network"])
        .args(["--package", "testbed", "--bin", "insula-scenario"])
        .args([
            "--bin",
            "insula-peer",
            "--bin",
            "insula-probe",
            "--bin",
            "notes",
        ])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", STATIC)
        .directory(project::root())
        .run()?;
    Tool::new("scripts/kernels")
        .args(["lwk", "vmm", "hostile"])
        .directory(project::root())
        .run()?;
    Ok(Programs {
        insula: stripped(&folder.join("insula"))?,
        scenario: stripped(&folder.join("insula-scenario"))?,
        peer: stripped(&folder.join("insula-peer"))?,
        probe: stripped(&folder.join("insula-probe"))?,
        notes: stripped(&folder.join("notes"))?,
        files: stripped(&folder.join("insula-files"))?,
        network: stripped(&folder.join("insula-network"))?,
        blocks: stripped(&folder.join("insula-blocks"))?,
        agent: stripped(&folder.join("insula-agent"))?,
        proxy: stripped(&folder.join("insula-proxy"))?,
        lwk: project::root().join("build/lwk/lwk"),
        vmm: project::root().join("build/vmm/vmm"),
        hostile: project::root().join("build/hostile/hostile"),
    })
}

/// Copy of a program without debug information, which is most of its size: each machine gets a copy, and
/// a node has it in memory as long as it runs.
pub(super) fn stripped(program: &Path) -> Result<PathBuf, ProgramsError> {
    // Other processes may build at the same time.
    let folder = program.parent().unwrap_or(Path::new("."));
    let copy = NamedTempFile::new_in(folder)?;
    let strip = Tool::new("strip").arg("-o").arg(copy.path()).arg(program);
    strip.run()?;
    let stripped = program.with_extension("stripped");
    copy.persist(&stripped).map_err(|error| error.error)?;
    Ok(stripped)
}
