//! The ordinary runtime, which does all that has nothing to do with kernels: crun, or runc.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output};
use std::thread;

use command_fds::{CommandFdExt, FdMapping};
use insula_base::error::Error;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// Their names, the better suited first.
const NAMES: [&str; 2] = ["crun", "runc"];
/// Where they are if `PATH` does not say so.
const FOLDERS: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/usr/sbin"];

/// Signals that it gets in place of this process.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The ordinary runtime.
#[derive(Clone, Debug)]
pub(super) struct Runtime(PathBuf);

impl Runtime {
    /// Finds it.
    ///
    /// # Errors
    /// None is installed.
    pub(super) fn find() -> Result<Self, Error> {
        let path = env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = env::split_paths(&path)
            .filter(|folder| folder.is_absolute())
            .chain(FOLDERS.iter().map(PathBuf::from))
            .collect();
        let mut found = NAMES
            .iter()
            .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
        let program = found.find(|file| file.is_file());
        program.map(Self).ok_or_else(|| {
            Error::new("there is neither crun nor runc")
                .untouched()
                .hint("install one of them: package `crun`")
        })
    }

    /// Becomes it.
    ///
    /// # Errors
    /// It cannot be executed.
    pub(super) fn exec(&self, words: &[OsString]) -> Error {
        let error = Command::new(&self.0).args(words).exec();
        self.failed(error)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It cannot be executed.
    pub(super) fn run(&self, words: &[OsString]) -> Result<ExitStatus, Error> {
        let status = Command::new(&self.0).args(words).status();
        status.map_err(|error| self.failed(error))
    }

    /// Runs it to its end, and returns what it prints.
    ///
    /// # Errors
    /// It cannot be executed.
    pub(super) fn output(&self, words: &[OsString]) -> Result<Output, Error> {
        let mut command = Command::new(&self.0);
        command.args(words).stderr(std::process::Stdio::inherit());
        command.output().map_err(|error| self.failed(error))
    }

    /// The same, without what it says of failures.
    ///
    /// # Errors
    /// It cannot be executed.
    pub(super) fn quiet_output(&self, words: &[OsString]) -> Result<Output, Error> {
        let output = Command::new(&self.0).args(words).output();
        output.map_err(|error| self.failed(error))
    }

    /// Runs it to its end, with these descriptors, which it hands to the container's process; and if `with_signals`, as by
    /// [`run_with_signals`](Self::run_with_signals).
    ///
    /// # Errors
    /// It cannot be executed.
    pub(super) fn run_passing(
        &self,
        words: &[OsString],
        descriptors: Vec<FdMapping>,
        with_signals: bool,
    ) -> Result<ExitStatus, Error> {
        let mut command = Command::new(&self.0);
        let command = command.args(words);
        let mapped = command.fd_mappings(descriptors);
        // Each has a number of its own.
        let command = mapped.map_err(|error| self.failed(std::io::Error::other(error)))?;
        match with_signals {
            true => self.with_signals(command),
            false => command.status().map_err(|error| self.failed(error)),
        }
    }

    /// Runs it to its end, and sends it the signals that this process gets meanwhile.
    ///
    /// # Errors
    /// It cannot be executed.
    pub(super) fn run_with_signals(&self, words: &[OsString]) -> Result<ExitStatus, Error> {
        self.with_signals(Command::new(&self.0).args(words))
    }

    fn with_signals(&self, command: &mut Command) -> Result<ExitStatus, Error> {
        let failed = |error| self.failed(error);
        let mut signals = Signals::new(FORWARDED).map_err(failed)?;
        let mut child = command.spawn().map_err(failed)?;
        let id = child.id();
        let handle = signals.handle();
        let forward = thread::spawn(move || {
            for signal in signals.forever() {
                let id = id.try_into().ok().and_then(Pid::from_raw);
                let signal = Signal::from_named_raw(signal);
                // It may have ended.
                let _ = id.zip(signal).map(|(id, signal)| kill_process(id, signal));
            }
        });
        let status = child.wait().map_err(failed);
        handle.close();
        let _ = forward.join();
        status
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let program: &Path = &self.0;
        Error::new(format!("{} cannot be executed", program.display()))
            .because(error)
            .untouched()
    }
}
