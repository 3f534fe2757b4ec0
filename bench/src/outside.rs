//! What is done on this machine: running a benchmark's emulated machine, having the emulator count
//! there, and measuring the peers that run beside it.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;
use testbed::equipment::{self, EquipmentError};
use testbed::kernels::{self, Flavour, Kernel};
use testbed::machine::{Accelerator, Machine, MachineError, Outcome, Task};
use testbed::node::{self, NodeInitrdError};
use testbed::payload::Content;
use testbed::project;
use testbed::scenario::Finding;
use testbed::tool::{Tool, ToolError};

use crate::benchmark::{Benchmark, Counted, Play};
use crate::circumstances::Circumstances;
use crate::inside::IntoValue;
use crate::marks;
use crate::measured::Measured;
use crate::samples::{self, Recorder, Samples};

/// The kernel of the emulated machine's base.
const BASE: Flavour = Flavour::V6_12;
/// The program that measures inside, and the one that it has measure from within programs.
const INSIDE_PROGRAM: &str = "insula-bench-inside";
const PROBE_PROGRAM: &str = "insula-bench-probe";
/// The emulator's plugin.
const COUNTER: &str = "insula-bench-counter";
const COUNTER_FILE: &str = "libinsula_bench_counter.so";
/// The only architecture there is.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// A benchmark takes minutes; on a loaded machine ten times as long.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// Most bytes of a task's last words that are repeated.
const COMPLAINT_BYTES: usize = 1000;

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine could not be equipped.
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// The program that measures inside could not be built.
    #[error(transparent)]
    Program(#[from] ToolError),
    /// The machine could not be run.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The peers' initial file system could not be made.
    #[error(transparent)]
    Initrd(#[from] NodeInitrdError),
    /// A file could not be read or written.
    #[error("a file of the benchmark could not be read or written: {0}")]
    File(#[from] io::Error),
}

/// Measures all of a benchmark, each thing `count` times.
///
/// A benchmark that fails midway is no error: what it has measured is answered, with its
/// complaint.
///
/// # Errors
/// [`RunError`].
pub fn run(
    benchmark: &Benchmark,
    count: u32,
    tell: &mut dyn FnMut(&str),
) -> Result<Measured, RunError> {
    let accelerator = match Accelerator::detect(BASE, tell)? {
        // A node that runs only while the base does not would be measured with the base's work.
        Accelerator::Tcg => Accelerator::TcgParallel,
        // Only what is emulated is counted.
        _ if benchmark.counted.is_some() => Accelerator::TcgParallel,
        other => other,
    };
    let circumstances = Circumstances::now(accelerator, BASE, &benchmark.machine)?;
    let counter = benchmark.counted.as_ref().map(Counter::build).transpose()?;
    let outcome = run_machine(benchmark, count, accelerator, counter.as_ref(), tell)?;
    let mut complaints = Vec::new();
    complaints.extend(complaint(&outcome));
    let file = outcome.files.get(samples::FILE);
    let text = file.map_or_else(String::new, |file| String::from_utf8_lossy(file).into());
    let mut samples = samples::parse(&text);
    if let Some(counter) = counter {
        for (id, value) in counter.samples()? {
            samples.entry(id.to_owned()).or_default().push(value);
        }
    }
    if let Some(peers) = benchmark.outside {
        match Outside::new(count, tell)?.play(peers) {
            Ok(more) => samples.extend(more),
            Err(finding) => complaints.push(format!("beside the machine: {finding}")),
        }
    }
    Ok(Measured {
        benchmark: benchmark.name.to_owned(),
        circumstances,
        spoilt: outcome.spoilt,
        complaints,
        samples,
    })
}

/// What kept the task from its end, if anything did.
fn complaint(outcome: &Outcome) -> Option<String> {
    let (what, told) = match outcome.status {
        Some(0) => return None,
        Some(_) => ("inside the machine", &outcome.output),
        None => ("the machine went down, the end of its log", &outcome.log),
    };
    let end = testbed::tool::tail(told.trim_end(), COMPLAINT_BYTES);
    Some(format!("{what}: {end}"))
}

fn run_machine(
    benchmark: &Benchmark,
    count: u32,
    accelerator: Accelerator,
    counter: Option<&Counter<'_>>,
    tell: &mut dyn FnMut(&str),
) -> Result<Outcome, RunError> {
    let mut payload = equipment::assemble(BASE, tell)?;
    for program in [INSIDE_PROGRAM, PROBE_PROGRAM] {
        let built = Content::File(build_inside_program(program)?);
        payload.program(&format!("bin/{program}"), built);
    }
    payload.load_module = true;
    let machine = Machine {
        cpus: benchmark.machine.cpus,
        memory_mib: benchmark.machine.memory_mib,
        numa_nodes: benchmark.machine.numa_nodes,
        spare_devices: benchmark.machine.spare_devices,
        append: benchmark.machine.append.to_owned(),
        qemu_arguments: counter.map(Counter::words).unwrap_or_default(),
        accelerator,
        root: benchmark.root,
        limit: LIMIT,
        ..Machine::new(BASE)
    };
    let count = count.to_string();
    let words = [INSIDE_PROGRAM, benchmark.name, "--samples", &count];
    let task = Task::Command(words.map(str::to_owned).to_vec());
    Ok(machine.run(&task, &payload, false, tell)?)
}

/// Builds a program, linked statically so that it needs nothing of the root disk, where the
/// test bed's own are built.
fn build_inside_program(program: &str) -> Result<PathBuf, ToolError> {
    let target = target_folder();
    Tool::new(&cargo())
        .args(["build", "--quiet", "--release", "--target", TARGET])
        .args(["--package", "insula-bench", "--bin", program])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .directory(project::root())
        .run()?;
    Ok(target.join(TARGET).join("release").join(program))
}

fn target_folder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    project::root().join(target.unwrap_or_else(|| "target".into()))
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// The emulator's plugin that counts, and where it puts what it has counted.
struct Counter<'a> {
    asked: &'a Counted,
    plugin: PathBuf,
    folder: TempDir,
}

impl<'a> Counter<'a> {
    /// Builds it for one run of a machine.
    fn build(asked: &'a Counted) -> Result<Self, RunError> {
        let target = target_folder();
        Tool::new(&cargo())
            .args(["build", "--quiet", "--release", "--package", COUNTER])
            .arg("--target-dir")
            .arg(&target)
            .directory(project::root())
            .run()?;
        Ok(Self {
            asked,
            plugin: target.join("release").join(COUNTER_FILE),
            folder: tempfile::tempdir_in(project::build())?,
        })
    }

    /// What it writes to.
    fn file(&self) -> PathBuf {
        self.folder.path().join("counts.jsonl")
    }

    /// For QEMU's command line, where a comma ends a value unless doubled.
    fn words(&self) -> Vec<String> {
        let [plugin, file] =
            [&self.plugin, &self.file()].map(|path| path.to_string_lossy().replace(',', ",,"));
        let lines = if self.asked.lines { "on" } else { "off" };
        let words = format!("{plugin},out={file},lines={lines}");
        vec!["-plugin".to_owned(), words]
    }

    /// What the benchmark makes of what was counted.
    fn samples(&self) -> io::Result<Vec<(&'static str, f64)>> {
        let counts = marks::parse(&fs::read_to_string(self.file())?)?;
        Ok((self.asked.samples)(&counts))
    }
}

/// What measuring a peer on this machine can use.
pub struct Outside {
    /// How often to measure each thing.
    pub count: u32,
    /// The frequency of this machine's time stamp counter, in kHz, which emulated ones share.
    pub tsc_khz: u32,
    kernels: Vec<Kernel>,
    folder: TempDir,
    initrd: PathBuf,
    recorder: Recorder,
}

impl Outside {
    fn new(count: u32, tell: &mut dyn FnMut(&str)) -> Result<Self, RunError> {
        let guard = project::lock()?;
        let kernels = Flavour::USUAL.map(|flavour| kernels::fetch(flavour, tell));
        let kernels: Vec<_> = kernels
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(EquipmentError::from)?;
        let folder = tempfile::tempdir_in(project::build())?;
        let initrd = folder.path().join("node.cpio");
        fs::write(&initrd, node::initrd(&kernels)?)?;
        drop(guard);
        let recorder = Recorder::new(folder.path())?;
        tell("measuring the peers that run beside the machine");
        Ok(Self {
            count,
            tsc_khz: testbed::machine::tsc::khz(),
            kernels,
            folder,
            initrd,
            recorder,
        })
    }

    fn play(&self, peers: Play<Self>) -> Result<Samples, Finding> {
        peers(self)?;
        let text = fs::read_to_string(self.folder.path().join(samples::FILE))?;
        Ok(samples::parse(&text))
    }

    /// A kernel's file.
    ///
    /// # Errors
    /// When it is not one of the usual ones.
    pub fn kernel(&self, flavour: Flavour) -> Result<PathBuf, Finding> {
        let found = self.kernels.iter().find(|kernel| kernel.flavour == flavour);
        let missing = || Finding::new(format!("the kernel {flavour} was not fetched"));
        Ok(found.ok_or_else(missing)?.vmlinuz())
    }

    /// The test nodes' initial file system.
    #[must_use]
    pub fn initrd(&self) -> &Path {
        &self.initrd
    }

    /// Keeps a time, in milliseconds, or another value in its row's unit.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, id: &str, value: impl IntoValue) -> Result<(), Finding> {
        Ok(self.recorder.record(id, value.into_value())?)
    }
}
