//! Emulated machine: a PC under QEMU, or Bochs, with a stock Debian kernel as its base, which executes one
//! task and switches itself off.

mod accelerator;
mod arguments;
mod bochs;
mod boot_watch;
mod emulator;
mod emulator_fault;
mod host_request;
mod monitor;
mod outcome;
mod prepared;
mod process;
mod running;
mod spare_devices;
pub mod tsc;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use accelerator::{Accelerator, UnknownAccelerator};
pub use emulator::{Emulator, UnknownEmulator, qemu};
pub use host_request::HostRequest;
pub use outcome::{Failure, Outcome};
pub use spare_devices::{SERVED_FILE, SpareDevices, UnknownSpareDevices, served_content};

use super::kernels::{FetchError, Flavour};
use super::packages::PackageError;
use super::payload::Payload;
use super::root::{Root, RootError};
use prepared::Prepared;
use process::Console;

/// Most runs of a task: one that the emulator's fault ends is repeated.
const ATTEMPTS: u32 = 3;

/// Configuration of a machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Kernel of the base.
    pub kernel: Flavour,
    /// Further kernels whose files are available inside; those of the base always are.
    pub other_kernels: Vec<Flavour>,
    /// Cores.
    pub cpus: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// NUMA nodes, which share cores and memory evenly.
    pub numa_nodes: u32,
    /// PCI functions to be given to nodes.
    pub spare_devices: SpareDevices,
    /// What runs it.
    pub emulator: Emulator,
    /// Accelerator.
    pub accelerator: Accelerator,
    /// Root disk.
    pub root: Root,
    /// Added to the base kernel's command line.
    pub append: String,
    /// A reset starts it again, with its memory as it is; else it ends the machine.
    pub resets: bool,
    /// Added to QEMU's command line.
    pub qemu_arguments: Vec<String>,
    /// Under Bochs: instructions of a core in a millisecond of the machine's time, and ticks of its time stamp
    /// counter. The kernel is told, since CPUID tells it the frequency of a real processor.
    pub bochs_ticks_per_ms: u32,
    /// Wall-clock time limit of a task. A shell has no limit.
    pub limit: Duration,
}

/// Task of a machine.
#[derive(Clone, Debug)]
pub enum Task {
    /// Run a command, given by its words, without a terminal.
    Command(Vec<String>),
    /// Give an interactive shell on this process's terminal.
    Shell,
}

/// Failure to run a machine. A command that fails is none.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A kernel could not be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The root disk could not be made.
    #[error(transparent)]
    Root(#[from] RootError),
    /// QEMU could not be fetched.
    #[error(transparent)]
    Emulator(#[from] PackageError),
    /// QEMU could not be started.
    #[error("QEMU could not be started (`make deps` installs it): {0}")]
    Start(io::Error),
    /// QEMU failed.
    #[error("QEMU failed ({status}):\n{message}")]
    Qemu {
        /// Its exit status.
        status: String,
        /// Its messages.
        message: String,
    },
    /// It took longer than [`Machine::limit`], given in seconds.
    #[error("{1}\nthe machine was ended after {0} s (time limit), with {cores}", cores = .1.cores)]
    Limit(u64, FinalState),
    /// It hung before its task had started.
    #[error("{0}\nthe machine hangs while it boots, with {cores}", cores = .0.cores)]
    Hang(FinalState),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

/// Last state of a machine that hung or took too long.
#[derive(Debug)]
pub struct FinalState {
    /// The end of the task's output.
    pub output: String,
    /// Path of its log.
    pub log_path: PathBuf,
    /// The end of its log.
    pub log: String,
    /// Where its cores were executing.
    pub cores: String,
}

impl fmt::Display for FinalState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            output,
            log_path,
            log,
            ..
        } = self;
        let log_path = log_path.display();
        write!(
            formatter,
            "The end of its log ({log_path}):\n{log}\nThe end of its output:\n{output}"
        )
    }
}

impl Machine {
    /// A machine of usual size: 4 cores, 4 GiB, both usual kernels' files.
    pub fn new(kernel: Flavour) -> Self {
        Self {
            kernel,
            other_kernels: Flavour::USUAL.to_vec(),
            cpus: 4,
            memory_mib: 4096,
            numa_nodes: 1,
            spare_devices: SpareDevices::None,
            emulator: Emulator::Installed,
            accelerator: Accelerator::Tcg,
            root: Root::Test,
            append: String::new(),
            resets: false,
            qemu_arguments: Vec::new(),
            bochs_ticks_per_ms: 100_000,
            limit: Duration::from_secs(300),
        }
    }

    /// Boots it with `payload`, runs its task and waits until it is off. `progress` gets a line
    /// before each step that takes long. With `show`, the task's output is copied to this process's
    /// output as it comes. A run that the emulator's fault ends is repeated.
    ///
    /// # Errors
    /// When a part cannot be fetched, QEMU fails, or it takes too long.
    pub fn run(
        &self,
        task: &Task,
        payload: &Payload,
        show: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Outcome, MachineError> {
        let mut emulator_faults = 0;
        loop {
            let result = self.run_once(task, payload, show, progress);
            if emulator_faults + 1 == ATTEMPTS || !self.has_emulator_fault(&result) {
                return result.map(|outcome| outcome.after_emulator_faults(emulator_faults));
            }
            emulator_faults += 1;
            progress(
                "a fault of the emulator ended the run (known of QEMU before 8.1); running it again",
            );
        }
    }

    fn run_once(
        &self,
        task: &Task,
        payload: &Payload,
        show: bool,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Outcome, MachineError> {
        if self.emulator == Emulator::Bochs {
            return bochs::run(self, task, payload, show, progress);
        }
        let prepared = Prepared::new(self, task, payload, progress)?;
        let console = match task {
            Task::Shell => Console::Terminal,
            Task::Command(_) => Console::Captured {
                show,
                limit: self.limit,
            },
        };
        let command = arguments::command(self, &prepared, console);
        match process::run(command, &prepared, console) {
            Ok(ended) => Outcome::new(prepared, ended),
            Err(error) => {
                prepared.keep();
                Err(error)
            }
        }
    }

    /// Whether the emulator, not the tested code, is at fault. A node's log shows only in the
    /// task's output.
    fn has_emulator_fault(&self, result: &Result<Outcome, MachineError>) -> bool {
        if self.accelerator != Accelerator::TcgParallel {
            return false;
        }
        let (log, output) = match result {
            Ok(outcome) => (&outcome.log, &outcome.output),
            Err(MachineError::Limit(_, ended)) => (&ended.log, &ended.output),
            // A stock kernel on a stock machine, with nothing of ours in it yet.
            Err(MachineError::Hang(_)) => return true,
            Err(_) => return false,
        };
        emulator_fault::is_in(log) || emulator_fault::is_in(output)
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> MachineError + use<> {
    let path = path.to_owned();
    |source| MachineError::File { path, source }
}
