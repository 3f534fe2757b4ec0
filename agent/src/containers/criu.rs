//! Running CRIU, which dumps processes to files and restores them.
//!
//! It is that of the image, or else the one that is installed in the node's root. Packets are not its
//! concern: the base holds them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::container::{CRIU_FOLDER, IMAGES};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::cgroup::Cgroup;
use super::one::Container;
use crate::archive;
use crate::log::is_on_base;
use crate::program::PATH;

/// CRIU's file in its folder, and the loader of its libraries there.
const PROGRAM: &str = "criu";
const LOADER: &str = "ld.so";
/// Options of dumps and restores: TCP connections, locks of files, files without a name, and network
/// and control group that the agent makes itself.
const COMMON: [&str; 7] = [
    "--tcp-established",
    "--file-locks",
    "--link-remap",
    "--network-lock",
    "skip",
    "--manage-cgroups=ignore",
    "-v2",
];
/// Key of the network namespace in the images.
pub(super) const NETWORK: &str = "network";

/// Folder of all but the images of a run, beside them.
pub(super) const WORK: &str = "work";
/// Time that a run has: less than the command waits for an answer. Images can be such that CRIU never ends.
const TIMEOUT: Duration = Duration::from_secs(110);
/// Interval at which the end of a killed server's run is looked for.
const INTERVAL: Duration = Duration::from_millis(1);
/// Files in the folder of all else: the lock of a run that reads a container, CRIU's log, and the id of the first
/// process that it has restored.
const LOCK: &str = "lock";
const LOG: &str = "log";
const PID: &str = "pid";
/// Folder there of programs that CRIU finds before all others.
const PROGRAMS: &str = "bin";

/// A run of CRIU for a container.
#[derive(Debug)]
pub(super) struct Criu {
    command: Command,
    work: PathBuf,
    action: &'static str,
}

impl Criu {
    /// Prepares a run with images and all else in this folder. `action` is CRIU's: `dump` or `restore`.
    /// The words `before` execute it.
    pub(super) fn new(folder: &Path, action: &'static str, before: &[&str]) -> io::Result<Self> {
        Self::with_images(folder, IMAGES, action, before)
    }

    /// The same with images in a folder of that name there.
    pub(super) fn with_images(
        folder: &Path,
        images: &str,
        action: &'static str,
        before: &[&str],
    ) -> io::Result<Self> {
        let (images, work) = (folder.join(images), folder.join(WORK));
        for folder in [&images, &work] {
            fs::create_dir_all(folder)?;
        }
        let program = program(Path::new(CRIU_FOLDER)).ok_or_else(none)?;
        let words = before.iter().map(OsString::from).chain(program);
        let own = link_archive(&work)?;
        let mut criu = Self::of(words, &images, work, action);
        criu.command
            .env("PATH", format!("{}:{PATH}", own.display()));
        Ok(criu)
    }

    /// Prepares a restore in another root, where the folders have these paths.
    pub(super) fn elsewhere(criu: &Path, images: &Path, work: &Path) -> io::Result<Self> {
        let words = program(criu).ok_or_else(none)?.into_iter();
        Ok(Self::of(words, images, work.to_owned(), "restore"))
    }

    fn of(
        mut words: impl Iterator<Item = OsString>,
        images: &Path,
        work: PathBuf,
        action: &'static str,
    ) -> Self {
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).arg(action).args(COMMON);
        command.arg("--images-dir").arg(images);
        command.arg("--work-dir").arg(&work);
        command.args(["--log-file", LOG]);
        command.env_clear().env("PATH", PATH);
        Self {
            command,
            work,
            action,
        }
    }

    /// The command, with what every run has that reads a container with this first process.
    pub(super) fn reads(&mut self, container: &Container, pid: Pid) -> io::Result<&mut Command> {
        let network = container.network.metadata()?.ino();
        let cgroup = Cgroup::of(&container.spec.name);
        self.command
            // It reads nothing: so CRIU inherits the lock.
            .stdin(lock(&self.work)?)
            .args(["--tree", &pid.as_raw_nonzero().to_string()])
            .arg("--freeze-cgroup")
            .arg(cgroup.path())
            .args(["--external", &format!("net[{network}]:{NETWORK}")]);
        Ok(&mut self.command)
    }

    /// Has it write no more of the memory than what has changed since it was written to the images
    /// in another folder beside its own, and note what changes from now on.
    pub(super) fn changes_since(&mut self, images: &str) {
        let images = format!("../{images}");
        self.command
            .args(["--track-mem", "--prev-images-dir", &images]);
    }

    /// The command, with what every restore has: the processes stand still, and the first one's id is
    /// written.
    pub(super) fn restores(&mut self, close_connections: bool) -> &mut Command {
        let standing = ["--restore-detached", "--leave-stopped", "--pidfile", PID];
        self.command.args(standing);
        if close_connections {
            self.command.arg("--tcp-close");
        }
        &mut self.command
    }

    /// Runs it; its error is CRIU's first.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let mut child = self.command.spawn()?;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        if !is_ready_in_time(&ended)? {
            child.kill()?;
            child.wait()?;
            let ended = format!("has not ended after {} s", TIMEOUT.as_secs());
            return Err(self.ended_by_force(&ended));
        }
        let status = child.wait()?;
        if status.success() {
            return Ok(());
        }
        if let Some(signal) = status.signal() {
            return Err(self.ended_by_force(&format!("was killed by signal {signal}")));
        }
        let log = fs::read(self.work.join(LOG)).unwrap_or_default();
        let reason = reason(&String::from_utf8_lossy(&log));
        Err(io::Error::other(format!("criu {}: {reason}", self.action)))
    }

    /// The error of a run that could not clean up: to dump a process CRIU executes code of its own in it, and takes
    /// its connections from it for that time.
    fn ended_by_force(&self, how: &str) -> io::Error {
        let action = self.action;
        let left = match action {
            "restore" => "",
            _ => ": what it had changed in the programs it has not undone, and they may fail",
        };
        io::Error::other(format!("criu {action} {how}{left}"))
    }
}

/// Waits for the end of a run that reads a container, begun by a server that was killed. It has locked a file in the
/// container's folder since before it was a process: the server may have been killed right after it had started it. One
/// that does not end in its time is waited for no longer: the container is taken over all the same.
pub(super) fn wait_for_end(folder: &Path) -> io::Result<()> {
    let start = Instant::now();
    while is_running(folder)? && start.elapsed() < TIMEOUT {
        thread::sleep(INTERVAL);
    }
    Ok(())
}

fn is_running(folder: &Path) -> io::Result<bool> {
    let lock = match File::open(folder.join(WORK).join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(true),
        locked => Ok(locked.map(|()| false)?),
    }
}

/// A lock that is held until all copies of this descriptor are closed.
fn lock(work: &Path) -> io::Result<File> {
    let lock = File::create(work.join(LOCK))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Makes a folder in which this program is `tar`. By its process it is found in all mounts in which CRIU
/// executes that.
fn link_archive(work: &Path) -> io::Result<PathBuf> {
    let folder = work.join(PROGRAMS);
    fs::create_dir_all(&folder)?;
    let link = folder.join(archive::NAME);
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => symlink(format!("/proc/{}/exe", std::process::id()), link)?,
    }
    Ok(folder)
}

fn none() -> io::Error {
    io::Error::other("there is no CRIU")
}

/// Waits until a file can be read, for the time that a run has.
pub(super) fn is_ready_in_time(file: impl AsFd) -> io::Result<bool> {
    let timeout = TIMEOUT.try_into().map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            polled => return Ok(polled? > 0),
        }
    }
}

/// The first process that was restored, as CRIU tells it.
pub(super) fn restored_process(work: &Path) -> io::Result<Pid> {
    let pid = fs::read_to_string(work.join(PID))?;
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("CRIU names no process"))
}

/// The first error in CRIU's log, without time and place in its source. The limit that it would like
/// to have is none.
fn reason(log: &str) -> String {
    let errors = log.lines().filter(|line| !line.contains("rlimit:"));
    let mut errors = errors.filter_map(|line| line.split_once("Error (")?.1.split_once("): "));
    let first = errors.next().map(|(_, text)| text.trim().to_owned());
    first.unwrap_or_else(|| "it gave no reason".to_owned())
}

/// What this kernel and its user space lack for moves.
pub(super) fn lacks() -> Vec<String> {
    let mut lacks = Vec::new();
    match program(Path::new(CRIU_FOLDER)) {
        None if is_on_base() => lacks.push("CRIU (install the package `criu`)".to_owned()),
        None => {
            lacks.push("CRIU (`insula image build --criu`, or install it in the root)".to_owned())
        }
        Some(words) => lacks.extend(check(&words).err()),
    }
    lacks
}

/// Has CRIU check the kernel.
fn check(words: &[OsString]) -> Result<(), String> {
    let mut command = Command::new(&words[0]);
    let command = command
        .args(&words[1..])
        .arg("check")
        .env_clear()
        .env("PATH", PATH);
    match command.output() {
        Err(error) => Err(format!("a CRIU that runs: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(format!("a kernel that CRIU can use: {}", reason(&text)))
        }
    }
}

/// The words that begin its command line, with the image's in this folder.
fn program(folder: &Path) -> Option<Vec<OsString>> {
    let own = folder.join(PROGRAM);
    if own.exists() {
        let words = [
            folder.join(LOADER),
            "--library-path".into(),
            folder.into(),
            own,
        ];
        return Some(words.map(PathBuf::into_os_string).into());
    }
    in_path(PROGRAM).map(|path| vec![path.into_os_string()])
}

fn in_path(name: &str) -> Option<PathBuf> {
    let mut paths = PATH.split(':').map(|folder| Path::new(folder).join(name));
    paths.find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_process_holds_the_lock_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_running(folder.path()).unwrap());
        let work = folder.path().join(WORK);
        fs::create_dir(&work).unwrap();
        let mut command = Command::new("sleep");
        let command = command.arg("1000").stdin(lock(&work).unwrap());
        let mut child = command.spawn().unwrap();
        command.stdin(Stdio::null());
        assert!(is_running(folder.path()).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        // A child that another test has just forked has all descriptors, until it executes its program.
        wait_for_end(folder.path()).unwrap();
        assert!(!is_running(folder.path()).unwrap());
    }

    #[test]
    fn the_first_error_is_the_reason() {
        let log = "(00.033) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE\n\
                   (00.034) Error (criu/mount.c:753): mnt: 74:./dev/tty has no root\n\
                   (00.035) Error (criu/cr-dump.c:1975): Dumping FAILED.\n";
        assert_eq!(reason(log), "mnt: 74:./dev/tty has no root");
        assert_eq!(reason("(00.1) fine\n"), "it gave no reason");
    }
}
