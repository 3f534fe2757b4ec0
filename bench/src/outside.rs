//! What is done on this machine: booting a benchmark's emulated machine as often as is asked for,
//! and measuring the peers that run beside it after each boot.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;
use testbed::equipment::EquipmentError;
use testbed::kernels::{self, Flavour, Kernel};
use testbed::machine::{Accelerator, Machine, MachineError, Outcome, Task};
use testbed::node::{self, NodeInitrdError};
use testbed::project;
use testbed::scenario::Finding;
use testbed::tool::ToolError;

use crate::benchmark::{Benchmark, Play};
use crate::circumstances::Circumstances;
use crate::counter::Counter;
use crate::equipment::{Equipment, INSIDE_PROGRAM};
use crate::inside::IntoValue;
use crate::measured::Measured;
use crate::others::Others;
use crate::plan::Plan;
use crate::samples::{self, Recorder, Samples};

/// The kernel of the emulated machine's base.
pub(crate) const BASE: Flavour = Flavour::V6_12;
/// What a boot and a round may take, ten times what they take on a quiet computer: one that hangs
/// is not to cost a record the hour that it has.
const BOOT_LIMIT: Duration = Duration::from_secs(5 * 60);
const ROUND_LIMIT: Duration = Duration::from_secs(6 * 60);
/// Most bytes of a task's last words that are repeated.
const COMPLAINT_BYTES: usize = 1000;

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// What the peers boot could not be had.
    #[error(transparent)]
    Equipment(#[from] EquipmentError),
    /// The circumstances could not be told.
    #[error(transparent)]
    Circumstances(#[from] ToolError),
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
/// A benchmark that fails midway is no error: what it has measured is answered, with its
/// complaint. Peers are measured after each boot, so that both see the same of this computer.
///
/// # Errors
/// [`RunError`].
pub fn run(
    benchmark: &Benchmark,
    plan: Plan,
    equipment: &Equipment,
    tell: &mut dyn FnMut(&str),
) -> Result<Measured, RunError> {
    let accelerator = accelerator(benchmark, tell)?;
    let mut measured = Measured {
        benchmark: benchmark.name.to_owned(),
        circumstances: Circumstances::now(accelerator, BASE, &benchmark.machine)?,
        spoilt: 0,
        complaints: Vec::new(),
        boots: Vec::new(),
    };
    let others = Others::begin()?;
    for _ in 0..plan.boots {
        let mut samples = boot(benchmark, plan, accelerator, equipment, &mut measured, tell)?;
        if let Some(peers) = benchmark.outside {
            match Outside::new(plan.rounds, tell)?.play(peers) {
                Ok(more) => samples.extend(more),
                Err(finding) => measured
                    .complaints
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
    tell: &mut dyn FnMut(&str),
) -> Result<Accelerator, ToolError> {
    Ok(match Accelerator::detect(BASE, tell)? {
        // A node that runs only while the base does not would be measured with the base's work.
        Accelerator::Tcg => Accelerator::TcgParallel,
        // Only what is emulated is counted.
        _ if benchmark.counted.is_some() => Accelerator::TcgParallel,
        other => other,
    })
}

/// Boots the machine once and has it measure. Answers the values; complaints go to `measured`.
fn boot(
    benchmark: &Benchmark,
    plan: Plan,
    accelerator: Accelerator,
    equipment: &Equipment,
    measured: &mut Measured,
    tell: &mut dyn FnMut(&str),
) -> Result<Samples, RunError> {
    let asked = benchmark.counted.as_ref().zip(equipment.counter.as_deref());
    let counter = asked.map(|(asked, plugin)| Counter::new(asked, plugin));
    let counter = counter.transpose()?;
    let machine = machine(benchmark, plan, accelerator, counter.as_ref());
    let count = plan.rounds.to_string();
    let words = [INSIDE_PROGRAM, benchmark.name, "--samples", &count];
    let task = Task::Command(words.map(str::to_owned).to_vec());
    let outcome = machine.run(&task, &equipment.payload, false, tell)?;
    measured.spoilt += outcome.spoilt;
    measured.complaints.extend(complaint(&outcome));
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

fn machine(
    benchmark: &Benchmark,
    plan: Plan,
    accelerator: Accelerator,
    counter: Option<&Counter<'_>>,
) -> Machine {
    Machine {
        cpus: benchmark.machine.cpus,
        memory_mib: benchmark.machine.memory_mib,
        numa_nodes: benchmark.machine.numa_nodes,
        spare_devices: benchmark.machine.spare_devices,
        append: benchmark.machine.append.to_owned(),
        qemu_arguments: counter.map(Counter::words).unwrap_or_default(),
        accelerator,
        root: benchmark.root,
        limit: BOOT_LIMIT + ROUND_LIMIT * plan.rounds,
        ..Machine::new(BASE)
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
