//! Building the project's own programs for the emulated machine.

use std::io;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

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

/// The programs that users have, linked statically so that they need nothing of the root disk.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Command `insula`.
    pub insula: PathBuf,
    /// A file server for a lightweight kernel.
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
}

/// Those that only tests have.
#[derive(Clone, Debug)]
pub struct TestPrograms {
    /// Runs tests inside.
    pub scenario: PathBuf,
    /// Runs in a node to talk to the base.
    pub peer: PathBuf,
    /// Runs on the base and on a lightweight kernel, to compare both.
    pub probe: PathBuf,
    /// The guide's server on a lightweight kernel.
    pub notes: PathBuf,
    /// A kernel that attacks its machine.
    pub hostile: PathBuf,
}

/// Words of cargo for what users have.
const OF_USERS: [&str; 20] = [
    "--package",
    "insula",
    "--bin",
    "insula",
    "--package",
    "insula-agent",
    "--bin",
    "insula-agent",
    "--package",
    "insula-exec",
    "--bin",
    "insula-proxy",
    "--package",
    "insula-server",
    "--bin",
    "insula-files",
    "--bin",
    "insula-blocks",
    "--bin",
    "insula-network",
];
/// And for what only tests have. Both are built at once: cargo would build their common libraries again where they have other
/// features.
const OF_TESTS: [&str; 10] = [
    "--package",
    "testbed",
    "--bin",
    "insula-scenario",
    "--bin",
    "insula-peer",
    "--bin",
    "insula-probe",
    "--bin",
    "notes",
];

/// Builds what users have, as far as it has changed. `progress` gets a line if that takes minutes.
///
/// # Errors
/// When cargo fails.
pub fn build(progress: &mut dyn FnMut(&str)) -> Result<Programs, ProgramsError> {
    programs(&compile(&[], &["lwk", "vmm"], progress)?)
}

/// Builds all, as far as they have changed. `progress` gets a line if that takes minutes.
///
/// # Errors
/// When cargo fails.
pub fn build_all(
    progress: &mut dyn FnMut(&str),
) -> Result<(Programs, TestPrograms), ProgramsError> {
    let folder = compile(&OF_TESTS, &["lwk", "vmm", "hostile"], progress)?;
    let built = |name: &str| stripped(&folder.join(name));
    let of_tests = TestPrograms {
        scenario: built("insula-scenario")?,
        peer: built("insula-peer")?,
        probe: built("insula-probe")?,
        notes: built("notes")?,
        hostile: project::root().join("build/hostile/hostile"),
    };
    Ok((programs(&folder)?, of_tests))
}

/// Compiles what users have and more, and kernels at the same time: the crates of either wait for each other. Returns the
/// folder of the programs.
fn compile(
    more: &[&str],
    kernels: &[&str],
    progress: &mut dyn FnMut(&str),
) -> Result<PathBuf, ProgramsError> {
    thread::scope(|scope| {
        let kernels = scope.spawn(|| build_kernels(kernels));
        let folder = run_cargo(more, progress);
        kernels
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))?;
        folder
    })
}

/// Runs cargo for what users have, and more. Returns the folder of the programs.
fn run_cargo(more: &[&str], progress: &mut dyn FnMut(&str)) -> Result<PathBuf, ProgramsError> {
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
        .args(OF_USERS)
        .args(more)
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", STATIC)
        .directory(project::root())
        .run()?;
    Ok(folder)
}

fn build_kernels(names: &[&str]) -> Result<(), ToolError> {
    let kernels = Tool::new("scripts/kernels").args(names);
    kernels.directory(project::root()).run().map(drop)
}

fn programs(folder: &Path) -> Result<Programs, ProgramsError> {
    let built = |name: &str| stripped(&folder.join(name));
    Ok(Programs {
        insula: built("insula")?,
        files: built("insula-files")?,
        blocks: built("insula-blocks")?,
        network: built("insula-network")?,
        agent: built("insula-agent")?,
        proxy: built("insula-proxy")?,
        lwk: project::root().join("build/lwk/lwk"),
        vmm: project::root().join("build/vmm/vmm"),
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
