//! Files of one run on the host: the kernels, the disks and a folder.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use super::emulator::Qemu;
use super::spare_devices::{DISK_BYTES, SERVED_FILE, SpareDevices, served_content};
use super::{Machine, MachineError, Task, arguments, at, process};
use crate::host::kernels::{self, Kernel};
use crate::host::payload::{self, Content, Payload};
use crate::host::project;
use crate::host::root::Root;

/// Size of the disk for results, in bytes. It is sparse.
const RESULT_DISK_BYTES: u64 = 1 << 30;

/// Files of a run, ready.
pub(super) struct Prepared {
    /// Kernel of the base, then the others.
    pub(super) kernels: Vec<Kernel>,
    /// Image of the root disk.
    pub(super) root: PathBuf,
    /// Emulator.
    pub(super) qemu: Qemu,
    folder: TempDir,
}

impl Prepared {
    /// Fetches all parts and writes the disks.
    pub(super) fn new(
        machine: &Machine,
        task: &Task,
        payload: &Payload,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, MachineError> {
        let runs = project::build().join("runs");
        let guard = project::lock().map_err(at(&runs))?;
        let mut kernels = vec![kernels::fetch(machine.kernel, progress)?];
        for &flavour in machine
            .other_kernels
            .iter()
            .filter(|&&other| other != machine.kernel)
        {
            kernels.push(kernels::fetch(flavour, progress)?);
        }
        let root = machine.root.image(progress)?;
        let qemu = machine.emulator.fetch(progress)?;
        drop(guard);

        fs::create_dir_all(&runs).map_err(at(&runs))?;
        let folder = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(&runs)
            .map_err(at(&runs))?;
        let prepared = Self {
            kernels,
            root,
            qemu,
            folder,
        };
        prepared.write_disks(machine, task, payload.clone())?;
        if machine.spare_devices != SpareDevices::None {
            prepared.write_spare()?;
        }
        Ok(prepared)
    }

    /// Disk of the payload.
    pub(super) fn payload(&self) -> PathBuf {
        self.file("payload")
    }

    /// Disk for the results.
    pub(super) fn result(&self) -> PathBuf {
        self.file("result")
    }

    /// Disk of the spare device.
    pub(super) fn spare_disk(&self) -> PathBuf {
        self.file("spare")
    }

    /// Folder that the other end of the spare network card serves.
    pub(super) fn served(&self) -> PathBuf {
        self.file("served")
    }

    /// The base kernel's log, as its serial port put it out.
    pub(super) fn log(&self) -> PathBuf {
        self.file("log")
    }

    /// QEMU's own messages.
    pub(super) fn qemu_log(&self) -> PathBuf {
        self.file("qemu.log")
    }

    /// File for the registers of its cores, if it did not switch itself off.
    pub(super) fn cores(&self) -> PathBuf {
        self.file("cores")
    }

    /// Keeps the run's folder, for inspection. By default it is removed.
    pub(super) fn keep(self) -> PathBuf {
        self.folder.keep()
    }

    /// The run's folder, which is removed when dropped.
    pub(super) fn into_folder(self) -> TempDir {
        self.folder
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

    /// Environment variables for the machine's first process.
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
