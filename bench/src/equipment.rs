//! Payload of every benchmark's machine, built once for all of them.
//!
//! The command is the one that users install: that of the project's Debian package, not the static
//! one that the testbed builds for itself, which an emulator starts faster.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol};
use tempfile::TempDir;
use testbed::host::debs::{self, DebsError};
use testbed::host::payload::equipment::{self, EquipmentError};
use testbed::host::payload::{Content, Payload};
use testbed::host::project;
use testbed::host::tool::{Tool, ToolError};

use crate::benchmark::Benchmark;
use crate::outside::BASE;

/// Programs that measure inside: the main program, and the one that it runs to measure from within.
pub(crate) const INSIDE_PROGRAM: &str = "insula-bench-inside";
const PROBE_PROGRAM: &str = "insula-bench-probe";
/// The emulator's plugin.
const COUNTER: &str = "insula-bench-counter";
const COUNTER_FILE: &str = "libinsula_bench_counter.so";
/// Part of the mangled name of the lightweight kernel's function that handles a doorbell.
const HANDLED: &str = "10interrupts10store_time";
/// The only supported architecture.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Files of the package, with their paths in the machine's payload.
const PACKAGED: [(&str, &str); 5] = [
    ("usr/bin/insula", "bin/insula"),
    ("usr/lib/insula/agent", "lib/insula/agent"),
    ("usr/lib/insula/insula-proxy", "lib/insula/insula-proxy"),
    ("usr/lib/insula/lwk", "lib/insula/lwk"),
    ("usr/lib/insula/vmm", "lib/insula/vmm"),
];

/// Failure to build the payload.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The tests' part of the payload could not be built.
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// The package could not be built.
    #[error(transparent)]
    Package(#[from] DebsError),
    /// A program could not be built.
    #[error(transparent)]
    Program(#[from] ToolError),
    /// The lightweight kernel lacks the function to which interrupts are counted.
    #[error("the lightweight kernel has no symbol `{HANDLED}`")]
    Symbol,
    /// The build folder could not be written.
    #[error("the build folder cannot be written: {0}")]
    Folder(#[from] io::Error),
}

/// What is needed for counting.
pub(crate) struct CounterEquipment {
    /// The emulator's plugin.
    pub(crate) plugin: PathBuf,
    /// Address of the block of the lightweight kernel at which a doorbell is handled.
    pub(crate) path_end: u64,
}

/// Payload and plugin.
pub struct Equipment {
    /// Payload of the machines.
    pub(crate) payload: Payload,
    /// For counting, if one of the benchmarks does.
    pub(crate) counter: Option<CounterEquipment>,
    /// The package's files, removed when this is dropped.
    _packaged: TempDir,
}

impl Equipment {
    /// Builds all that these benchmarks need, as far as it has changed.
    ///
    /// # Errors
    /// When a part cannot be built.
    pub fn build(
        benchmarks: &[&Benchmark],
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, BuildError> {
        let mut payload = equipment::assemble(BASE, progress)?;
        let debs = debs::build(progress)?;
        let packaged = tempfile::tempdir_in(project::build())?;
        Tool::new("dpkg-deb")
            .arg("--extract")
            .arg(&debs.command)
            .arg(packaged.path())
            .run()?;
        for (file, path) in PACKAGED {
            payload.program(path, Content::File(packaged.path().join(file)));
        }
        for program in [INSIDE_PROGRAM, PROBE_PROGRAM] {
            let built = Content::File(build_inside_program(program)?);
            payload.program(&format!("bin/{program}"), built);
        }
        payload.load_module = true;
        let counts = benchmarks.iter().any(|one| one.counted.is_some());
        Ok(Self {
            payload,
            counter: counts.then(|| counter(packaged.path())).transpose()?,
            _packaged: packaged,
        })
    }
}

/// Builds a program, statically linked so that it needs nothing of the root disk, in the testbed's
/// target folder.
fn build_inside_program(program: &str) -> Result<PathBuf, ToolError> {
    let target = target_folder();
    cargo_build(&target)
        .args(["--target", TARGET])
        .args(["--package", "insula-bench", "--bin", program])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .run()?;
    Ok(target.join(TARGET).join("release").join(program))
}

fn counter(packaged: &Path) -> Result<CounterEquipment, BuildError> {
    let lwk = packaged.join("usr/lib/insula/lwk");
    let path_end = address_of(&fs::read(lwk)?, HANDLED);
    Ok(CounterEquipment {
        plugin: build_counter()?,
        path_end: path_end.ok_or(BuildError::Symbol)?,
    })
}

/// Address of a function of an ELF file, by the end of its path.
fn address_of(file: &[u8], function: &str) -> Option<u64> {
    let file = object::File::parse(file).ok()?;
    let found = file
        .symbols()
        .find(|symbol| symbol.name().is_ok_and(|name| name.contains(function)));
    found.map(|symbol| symbol.address())
}

fn build_counter() -> Result<PathBuf, ToolError> {
    let target = target_folder();
    cargo_build(&target).args(["--package", COUNTER]).run()?;
    Ok(target.join("release").join(COUNTER_FILE))
}

fn cargo_build(target: &Path) -> Tool {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    Tool::new(&cargo)
        .args(["build", "--quiet", "--release", "--target-dir"])
        .arg(target)
        .directory(project::root())
}

fn target_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    project::root().join(target.unwrap_or_else(|| "target".into()))
}
