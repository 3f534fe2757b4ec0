//! Building the project's own programs for the emulated machine.

use std::path::PathBuf;

use crate::project;
use crate::tool::{Tool, ToolError};

/// The only architecture there is.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Without libraries, and at the same address each time, so that an emulator that
/// has translated a program once need not do so at each start.
const STATIC: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// The programs, linked statically so that they need nothing of the root disk.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The command `insula`.
    pub insula: PathBuf,
    /// What runs tests inside.
    pub scenario: PathBuf,
    /// What a node runs to talk to the base.
    pub peer: PathBuf,
    /// The lightweight kernel.
    pub lwk: PathBuf,
}

/// Builds them, as far as they have changed. `tell` gets a line if that takes
/// minutes.
///
/// # Errors
/// When cargo fails.
pub fn build(tell: &mut dyn FnMut(&str)) -> Result<Programs, ToolError> {
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
        .args(["--package", "testbed", "--bin", "insula-scenario"])
        .args(["--bin", "insula-peer"])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", STATIC)
        .directory(project::root())
        .run()?;
    Tool::new("scripts/lwk").directory(project::root()).run()?;
    Ok(Programs {
        insula: folder.join("insula"),
        scenario: folder.join("insula-scenario"),
        peer: folder.join("insula-peer"),
        lwk: project::root().join("build/lwk/lwk"),
    })
}
