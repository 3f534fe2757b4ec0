//! Measurements from the host: boots a benchmark's emulated machine as often as requested, and
//! measures the peers on the host after each boot.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;
use testbed::base::Finding;
use testbed::host::kernels::{self, Flavour, Kernel};
use testbed::host::machine::{Accelerator, Emulator, Machine, MachineError, Outcome, Task};
use testbed::host::packages::PackageError;
use testbed::host::payload::equipment::EquipmentError;
use testbed::host::payload::node_initrd::{self, NodeInitrdError};
use testbed::host::project;
use testbed::host::tool::ToolError;

use crate::benchmark::{Benchmark, Play};
use crate::circumstances::Circumstances;
use crate::counter::Counter;
use crate::equipment::{Equipment, INSIDE_PROGRAM};
use crate::inside::IntoValue;
use crate::measured::Measured;
use crate::others::Others;
use crate::plan::Plan;
use crate::samples::{self, Recorder, Samples};

/// Kernel of the emulated machine's base.
pub(crate) const BASE: Flavour = Flavour::V6_12;
/// Time limits of a boot and of a round, ten times what they take on a quiet computer: one that
/// hangs must not cost a record its hour.
const BOOT_LIMIT: Duration = Duration::from_secs(5 * 60);
const ROUND_LIMIT: Duration = Duration::from_secs(6 * 60);
/// So many times as much on Bochs, which interprets all cores' instructions one after the other.
const BOCHS_SLOWNESS: u32 = 3;
/// Most bytes of a failed task's output that are quoted.
const FAILURE_BYTES: usize = 1000;

/// Failure to run a benchmark.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The peers' kernels could not be fetched.
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// The circumstances could not be determined.
    #[error(transparent)]
    Circumstances(#[from] ToolError),
    /// The emulator could not be fetched.
    #[error(transparent)]
    Emulator(#[from] PackageError),
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

/// Measures all of a benchmark.
///
/// A benchmark that fails midway is no error: its measurements so far are returned, with the
/// failure. Peers are measured after each boot, so that both meet the same load of the host. `emulator`
/// replaces that of the benchmark's machine.
///
/// # Errors
/// [`RunError`].
pub fn run(
    benchmark: &Benchmark,
    emulator: Option<Emulator>,
    plan: Plan,
    equipment: &Equipment,
    progress: &mut dyn FnMut(&str),
) -> Result<Measured, RunError> {
    let usual = match benchmark.counted {
        // Older ones have another interface of plugins.
        Some(_) => Emulator::Backports,
        None => benchmark.machine.emulator,
    };
    let emulator = emulator.unwrap_or(usual);
    let machine = machine(benchmark, emulator, plan, accelerator(benchmark, progress)?);
    let mut measured = Measured {
        benchmark: benchmark.name.to_owned(),
        circumstances: Circumstances::now(&machine)?,
        emulator_faults: 0,
        errors: Vec::new(),
        boots: Vec::new(),
    };
    let others = Others::begin()?;
    for _ in 0..plan.boots {
        let mut samples = boot(
            benchmark,
            &machine,
            plan.rounds,
            equipment,
            &mut measured,
            progress,
        )?;
        if let Some(peers) = benchmark.outside {
            match Outside::new(plan.rounds, progress)?.play(peers) {
                Ok(more) => samples.extend(more),
                Err(finding) => measured
                    .errors
                    .push(format!("beside the machine: {finding}")),
            }
        }
        measured.boots.push(samples);
    }
    measured.circumstances.others = others.end()?;
    Ok(measured)
}

fn accelerator(
    benchmark: &Benchmark,
    progress: &mut dyn FnMut(&str),
) -> Result<Accelerator, ToolError> {
    Ok(match Accelerator::detect(BASE, progress)? {
        // A node that runs only in turn with the base would be measured with the base's work.
        Accelerator::Tcg => Accelerator::TcgParallel,
        // Counting needs emulation.
        _ if benchmark.counted.is_some() => Accelerator::TcgParallel,
        other => other,
    })
}

/// Boots the machine once and runs the benchmark in it. Returns the values; errors go to
/// `measured`.
fn boot(
    benchmark: &Benchmark,
    machine: &Machine,
    rounds: u32,
    equipment: &Equipment,
    measured: &mut Measured,
    progress: &mut dyn FnMut(&str),
) -> Result<Samples, RunError> {
    let evaluation = benchmark.counted.as_ref().zip(equipment.counter.as_ref());
    let counter = evaluation.map(|(counted, equipment)| Counter::new(counted, equipment));
    let counter = counter.transpose()?;
    let machine = Machine {
        qemu_arguments: counter.as_ref().map(Counter::words).unwrap_or_default(),
        ..machine.clone()
    };
    let count = rounds.to_string();
    let words = [INSIDE_PROGRAM, benchmark.name, "--samples", &count];
    let task = Task::Command(words.map(str::to_owned).to_vec());
    let outcome = machine.run(&task, &equipment.payload, false, progress)?;
    measured.emulator_faults += outcome.emulator_faults;
    measured.errors.extend(failure(&outcome));
    let file = outcome.files.get(samples::FILE);
    let text = file.map_or_else(String::new, |file| String::from_utf8_lossy(file).into());
    let mut samples = samples::parse(&text);
    if let Some(counter) = counter {
        for (id, value) in counter.samples()? {
            samples.entry(id.to_owned()).or_default().push(value);
        }
    }
    Ok(samples)
}

/// Failure of the task, if any.
fn failure(outcome: &Outcome) -> Option<String> {
    let (what, output) = match outcome.status {
        Some(0) => return None,
        Some(_) => ("inside the machine", &outcome.output),
        None => ("the machine went down, the end of its log", &outcome.log),
    };
    let end = testbed::host::tool::tail(output.trim_end(), FAILURE_BYTES);
    Some(format!("{what}: {end}"))
}

/// Instructions of a core in a millisecond of Bochs' time: some third of a processor's, so that what the kernels do
/// for a time, as polling, has about its proportion to what they do once.
const BOCHS_TICKS_PER_MS: u32 = 1_000_000;

fn machine(
    benchmark: &Benchmark,
    emulator: Emulator,
    plan: Plan,
    accelerator: Accelerator,
) -> Machine {
    let slowness = match emulator {
        Emulator::Bochs => BOCHS_SLOWNESS,
        _ => 1,
    };
    Machine {
        cpus: benchmark.machine.cpus,
        memory_mib: benchmark.machine.memory_mib,
        numa_nodes: benchmark.machine.numa_nodes,
        spare_devices: benchmark.machine.spare_devices,
        append: benchmark.machine.append.to_owned(),
        emulator,
        bochs_ticks_per_ms: BOCHS_TICKS_PER_MS,
        accelerator,
        root: benchmark.root,
        limit: (BOOT_LIMIT + ROUND_LIMIT * plan.rounds) * slowness,
        ..Machine::new(BASE)
    }
}

/// Means to measure a peer on the host.
pub struct Outside {
    /// Measurements of each row.
    pub count: u32,
    /// Frequency of the host's time stamp counter, in kHz, which emulated ones share.
    pub tsc_khz: u32,
    kernels: Vec<Kernel>,
    folder: TempDir,
    initrd: PathBuf,
    recorder: Recorder,
}

impl Outside {
    fn new(count: u32, progress: &mut dyn FnMut(&str)) -> Result<Self, RunError> {
        let guard = project::lock()?;
        let kernels = Flavour::USUAL.map(|flavour| kernels::fetch(flavour, progress));
        let kernels: Vec<_> = kernels
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(EquipmentError::from)?;
        let folder = tempfile::tempdir_in(project::build())?;
        let initrd = folder.path().join("node.cpio");
        fs::write(&initrd, node_initrd::initrd(&kernels)?)?;
        drop(guard);
        let recorder = Recorder::new(folder.path())?;
        progress("measuring the peers that run beside the machine");
        Ok(Self {
            count,
            tsc_khz: testbed::host::machine::tsc::khz(),
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

    /// Path of a kernel.
    ///
    /// # Errors
    /// When it is not one of the usual ones.
    pub fn kernel(&self, flavour: Flavour) -> Result<PathBuf, Finding> {
        let found = self.kernels.iter().find(|kernel| kernel.flavour == flavour);
        let missing = || Finding::new(format!("the kernel {flavour} was not fetched"));
        Ok(found.ok_or_else(missing)?.vmlinuz())
    }

    /// Initial file system of the test nodes.
    #[must_use]
    pub fn initrd(&self) -> &Path {
        &self.initrd
    }

    /// Records a time, in milliseconds, or another value in its row's unit.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, id: &str, value: impl IntoValue) -> Result<(), Finding> {
        Ok(self.recorder.record(id, value.into_value())?)
    }
}
