//! What one run needs on this machine: the kernels, the disks and a folder.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::spare_devices::{DISK_BYTES, SERVED_FILE, SpareDevices, served_content};
use super::{Machine, MachineError, Task, arguments, at, process};
use crate::kernels::{self, Kernel};
use crate::payload::{self, Content, Payload};
use crate::project;
use crate::root::Root;

/// Size of the disk that results are stored on, in bytes. It takes no space until
/// written to.
const RESULT_DISK_BYTES: u64 = 1 << 30;

/// All that a run needs, ready.
pub(super) struct Prepared {
    /// The base's, then the others.
    pub(super) kernels: Vec<Kernel>,
    /// The root disk's image.
    pub(super) root: PathBuf,
    folder: TempDir,
}

impl Prepared {
    /// Gets all parts and writes the disks.
    pub(super) fn new(
        machine: &Machine,
        task: &Task,
        payload: &Payload,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Self, MachineError> {
        let runs = project::build().join("runs");
        let guard = project::lock().map_err(at(&runs))?;
        let mut kernels = vec![kernels::fetch(machine.kernel, tell)?];
        for &flavour in machine
            .other_kernels
            .iter()
            .filter(|&&other| other != machine.kernel)
        {
            kernels.push(kernels::fetch(flavour, tell)?);
        }
        let root = machine.root.image(tell)?;
        drop(guard);

        fs::create_dir_all(&runs).map_err(at(&runs))?;
        let folder = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(&runs)
            .map_err(at(&runs))?;
        let prepared = Self {
            kernels,
            root,
            folder,
        };
        prepared.write_disks(machine, task, payload.clone())?;
        if machine.spare_devices != SpareDevices::None {
            prepared.write_spare()?;
        }
        Ok(prepared)
    }

    /// The disk that the payload is on.
    pub(super) fn payload(&self) -> PathBuf {
        self.file("payload")
    }

    /// The disk that results are stored on.
    pub(super) fn result(&self) -> PathBuf {
        self.file("result")
    }

    /// The disk that is a spare device.
    pub(super) fn spare_disk(&self) -> PathBuf {
        self.file("spare")
    }

    /// The folder that a spare network card's other end serves.
    pub(super) fn served(&self) -> PathBuf {
        self.file("served")
    }

    /// The base kernel's log, as its serial port put it out.
    pub(super) fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// What QEMU itself says.
    pub(super) fn qemu_log(&self) -> PathBuf {
        self.file("qemu.log")
    }

    /// The registers of its cores, if it did not switch itself off.
    pub(super) fn cores(&self) -> PathBuf {
        self.file("cores")
    }

    /// Leaves the run's folder where it is, to be looked at. Else it goes.
    pub(super) fn keep(self) -> PathBuf {
        self.folder.keep()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_disks(
        &self,
        machine: &Machine,
        task: &Task,
        mut payload: Payload,
    ) -> Result<(), MachineError> {
        let settings = self.settings(machine, task, payload.load_module);
        payload.file("settings", Content::Bytes(settings.into_bytes()));
        if let Task::Command(words) = task {
            let command = format!("exec {}\n", payload::shell_command(words));
            payload.file("command", Content::Bytes(command.into_bytes()));
        }
        payload
            .write(&self.payload())
            .map_err(at(&self.payload()))?;
        payload::empty_disk(&self.result(), RESULT_DISK_BYTES).map_err(at(&self.result()))
    }

    fn write_spare(&self) -> Result<(), MachineError> {
        let disk = self.spare_disk();
        payload::empty_disk(&disk, DISK_BYTES).map_err(at(&disk))?;
        let folder = self.served();
        fs::create_dir(&folder).map_err(at(&folder))?;
        let file = folder.join(SERVED_FILE);
        fs::write(&file, served_content()).map_err(at(&file))
    }

    /// Variables for the machine's first process.
    fn settings(&self, machine: &Machine, task: &Task, load_module: bool) -> String {
        let (mode, (rows, columns)) = match task {
            Task::Shell => ("shell", process::terminal_size()),
            Task::Command(_) => ("run", (0, 0)),
        };
        let yes = |is: bool| if is { "yes" } else { "no" };
        let (module, systemd) = (yes(load_module), yes(machine.root == Root::Installed));
        let last_disk = arguments::FIRST_KERNEL_DISK + self.kernels.len() - 1;
        let terminal = std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned());
        let terminal = payload::shell_command(&[terminal]);
        format!(
            "MODE={mode}\nMODULE={module}\nSYSTEMD={systemd}\nLAST_DISK={last_disk}\nROWS={rows}\nCOLUMNS={columns}\n\
             export TERM={terminal}\n"
        )
    }
}
