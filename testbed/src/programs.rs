//! Building the project's own programs for the emulated machine.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::project;
use crate::tool::{Tool, ToolError};

/// The only architecture there is.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Without libraries, and at the same address each time, so that an emulator that
/// has translated a program once need not do so at each start.
const STATIC: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// Why there are no programs.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// Cargo failed, or another program.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// What was built cannot be written.
    #[error("the folder of what was built cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// The programs, linked statically so that they need nothing of the root disk.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The command `insula`.
    pub insula: PathBuf,
    /// What runs tests inside.
    pub scenario: PathBuf,
    /// What a node runs to talk to the base.
    pub peer: PathBuf,
    /// What runs on the base and on a lightweight kernel, to be compared.
    pub probe: PathBuf,
    /// The first process of a node to live in.
    pub agent: PathBuf,
    /// The lightweight kernel.
    pub lwk: PathBuf,
}

/// Builds them, as far as they have changed. `tell` gets a line if that takes
/// minutes.
///
/// # Errors
/// When cargo fails.
pub fn build(tell: &mut dyn FnMut(&str)) -> Result<Programs, ProgramsError> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = project::root().join(target.unwrap_or_else(|| "target".into()));
    let folder = target.join(TARGET).join("release");
    if !folder.exists() {
        tell("building the programs for the machine (a few minutes, the first time)");
    }
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Naming the target keeps these flags from build scripts and macros.
    Tool::new(&cargo)
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--package", "insula", "--bin", "insula"])
        .args(["--package", "insula-agent", "--bin", "insula-agent"])
        .args(["--package", "testbed", "--bin", "insula-scenario"])
        .args(["--bin", "insula-peer", "--bin", "insula-probe"])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", STATIC)
        .directory(project::root())
        .run()?;
    Tool::new("scripts/lwk").directory(project::root()).run()?;
    Ok(Programs {
        insula: folder.join("insula"),
        scenario: folder.join("insula-scenario"),
        peer: stripped(&folder.join("insula-peer"))?,
        probe: stripped(&folder.join("insula-probe"))?,
        agent: stripped(&folder.join("insula-agent"))?,
        lwk: project::root().join("build/lwk/lwk"),
    })
}

/// A copy of a program without what only debuggers read, which is most of it: a node has it in its
/// memory as long as it runs.
fn stripped(program: &Path) -> Result<PathBuf, ProgramsError> {
    // Others may be building, too.
    let folder = program.parent().unwrap_or(Path::new("."));
    let copy = NamedTempFile::new_in(folder)?;
    let strip = Tool::new("strip").arg("-o").arg(copy.path()).arg(program);
    strip.run()?;
    let stripped = program.with_extension("stripped");
    copy.persist(&stripped).map_err(|error| error.error)?;
    Ok(stripped)
}
