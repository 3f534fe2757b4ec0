//! The emulated machine: a PC under QEMU with a stock Debian kernel as its base,
//! which does one task and is gone.

mod accelerator;
mod arguments;
mod boot_watch;
mod emulator_fault;
mod monitor;
mod outcome;
mod prepared;
mod process;
mod running;
mod spare_devices;
pub mod tsc;
mod wish;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use accelerator::{Accelerator, UnknownAccelerator};
pub use arguments::qemu;
pub use outcome::{Failure, Outcome};
pub use spare_devices::{SERVED_FILE, SpareDevices, UnknownSpareDevices, served_content};
pub use wish::Wish;

use crate::kernels::{FetchError, Flavour};
use crate::payload::Payload;
use crate::root::{Root, RootError};
use prepared::Prepared;
use process::Console;

/// How often a run is made that the emulator spoils.
const ATTEMPTS: u32 = 3;

/// A machine's parts.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The kernel that boots it.
    pub kernel: Flavour,
    /// Kernels whose files are to be there; that of the base always is.
    pub other_kernels: Vec<Flavour>,
    /// Cores.
    pub cpus: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// NUMA nodes, which share cores and memory evenly.
    pub numa_nodes: u32,
    /// PCI functions to be given to nodes.
    pub spare_devices: SpareDevices,
    /// What executes it.
    pub accelerator: Accelerator,
    /// Its root disk.
    pub root: Root,
    /// Added to the base kernel's command line.
    pub append: String,
    /// Added to QEMU's command line.
    pub qemu_arguments: Vec<String>,
    /// Wall-clock time after which a task is given up. A shell has no limit.
    pub limit: Duration,
}

/// What a machine is to do.
#[derive(Clone, Debug)]
pub enum Task {
    /// Run a command, given by its words, without a terminal.
    Command(Vec<String>),
    /// Give an interactive shell on this process's terminal.
    Shell,
}

/// Why a machine could not be run. That its command failed is no such reason.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A kernel could not be had.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The root disk could not be had.
    #[error(transparent)]
    Root(#[from] RootError),
    /// QEMU could not be started.
    #[error("QEMU could not be started (`make deps` installs it): {0}")]
    Start(io::Error),
    /// QEMU gave up.
    #[error("QEMU failed ({status}):\n{message}")]
    Qemu {
        /// How it ended.
        status: String,
        /// What it said.
        message: String,
    },
    /// It took longer than [`Machine::limit`], given in seconds.
    #[error("{1}\nthe machine was given up after {0} s with {cores}", cores = .1.cores)]
    Limit(u64, GivenUp),
    /// It hung before its task had begun.
    #[error("{0}\nthe machine hangs while it boots, with {cores}", cores = .0.cores)]
    Hang(GivenUp),
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What was known of a machine when it was given up.
#[derive(Debug)]
pub struct GivenUp {
    /// The end of what its task had printed.
    pub output: String,
    /// Where its log is.
    pub log_path: PathBuf,
    /// The end of that.
    pub log: String,
    /// Where its cores were.
    pub cores: String,
}

impl fmt::Display for GivenUp {
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
            accelerator: Accelerator::Tcg,
            root: Root::Test,
            append: String::new(),
            qemu_arguments: Vec::new(),
            limit: Duration::from_secs(300),
        }
    }

    /// Boots it with `payload`, lets it do its task and waits until it is off.
    /// `tell` gets a line before each step that takes long. With `show`, what the
    /// task prints is copied to this process's output as it comes. A run that the
    /// emulator has spoilt is made again.
    ///
    /// # Errors
    /// When a part cannot be had, QEMU fails, or it takes too long.
    pub fn run(
        &self,
        task: &Task,
        payload: &Payload,
        show: bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Outcome, MachineError> {
        let mut spoilt = 0;
        loop {
            let result = self.run_once(task, payload, show, tell);
            if spoilt + 1 == ATTEMPTS || !self.is_spoilt(&result) {
                return result.map(|outcome| outcome.after_spoilt(spoilt));
            }
            spoilt += 1;
            tell(
                "the emulator made the kernel stumble (a known fault of QEMU before 8.1); once more",
            );
        }
    }

    fn run_once(
        &self,
        task: &Task,
        payload: &Payload,
        show: bool,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Outcome, MachineError> {
        let prepared = Prepared::new(self, task, payload, tell)?;
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

    /// Whether the emulator, not what it ran, is at fault. A node's log shows only
    /// in the task's output.
    fn is_spoilt(&self, result: &Result<Outcome, MachineError>) -> bool {
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
