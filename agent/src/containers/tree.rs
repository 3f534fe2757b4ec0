//! Processes that plain CRIU has dumped, in a container of their own.
//!
//! They had no namespaces of their own, so CRIU restores them in those in which it runs itself. The
//! first process of the container has it do so, inside, and then is what Docker calls an init: it waits for
//! all, passes signals on to the first of them, and ends with it. Its program lies in the container's own
//! memory, so that it can be moved with the container.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use insula_agent::ExitStatus;
use insula_agent::container::{CRIU_FOLDER, ContainerSpec, IMAGES};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use rustix::stdio::stdin;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::cgroup::Cgroup;
use super::criu::{Criu, WORK, is_ready_in_time, restored_process};
use super::inside;
use super::namespaces::{self, Carrier};
use super::one::{self, Files, folder};
use crate::program::{PATH, SELF};

/// Role of this program: to restore processes as a container's first one. Its name, root, folder and what
/// becomes of connections follow; the standard input takes what has become of it.
pub(crate) const TREE: &str = "--restored-tree";
/// Role of this program: to be the first process of such a container. The id of the first restored one
/// follows.
pub(crate) const FIRST: &str = "--first";
/// What becomes of connections.
const CLOSED: &str = "closed";
const ESTABLISHED: &str = "established";
/// What is told when all is restored; anything else is the reason why not.
const RESTORED: &[u8] = b"restored";
/// Where its program lies in the container.
const PROGRAM: &str = "/run/insula-init";
/// What CRIU keeps for its next run.
const CRIU_CACHE: &str = "/run/criu.kdat";
/// The id of the newest process, and the largest: CRIU's own must be none of those that it restores.
const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
const PID_MAX: &str = "/proc/sys/kernel/pid_max";
/// Ids that CRIU may need.
const CRIU_PIDS: u32 = 200;
/// Signals that are passed on.
const PASSED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Restores processes from the files in the container's folder; the container's first process.
pub(super) fn restore(
    spec: &ContainerSpec,
    root: &Path,
    close_connections: bool,
) -> io::Result<(Pid, Files)> {
    let folder = folder(&spec.name);
    fs::create_dir_all(folder.join(WORK))?;
    let (output, input) = io::pipe()?;
    let (told, tell) = io::pipe()?;
    let connections = match close_connections {
        true => CLOSED,
        false => ESTABLISHED,
    };
    let mut command = Command::new(SELF);
    command
        .args([TREE, &spec.name])
        .arg(root)
        .arg(folder)
        .arg(connections);
    command.env_clear().env("PATH", PATH);
    command.stdin(tell).stdout(input.try_clone()?).stderr(input);
    let address = spec.address;
    let (mut child, network) = namespaces::in_thread(move || {
        let network = namespaces::enter_new(address, Carrier::Off)?;
        Ok((command.spawn()?, network))
    })?;
    if let Err(error) = hear(told.into()) {
        Cgroup::of(&spec.name).kill()?;
        // It may not have come as far as that group.
        let _ = child.kill();
        child.wait()?;
        return Err(error);
    }
    let files = Files {
        network,
        output: File::from(OwnedFd::from(output)),
    };
    Ok((Pid::from_child(&child), files))
}

/// Waits for what has become of it.
fn hear(told: OwnedFd) -> io::Result<()> {
    let (mut told, mut text) = (File::from(told), Vec::new());
    let mut piece = [0; 256];
    loop {
        if !is_ready_in_time(&told)? {
            return Err(io::Error::other("CRIU does not end"));
        }
        match told.read(&mut piece)? {
            0 if text == RESTORED => return Ok(()),
            0 if text.is_empty() => return Err(io::Error::other("its first process has ended")),
            0 => {
                return Err(io::Error::other(
                    String::from_utf8_lossy(&text).into_owned(),
                ));
            }
            count => text.extend_from_slice(&piece[..count]),
        }
    }
}

/// Becomes the first process of a container, and has CRIU restore all others.
pub(crate) fn enter(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let mut next = || words.next().unwrap_or_default();
    let (name, root, folder, connections) = (next(), next(), next(), next());
    let Ok(tell) = fcntl_dupfd_cloexec(stdin(), 3) else {
        return ExitCode::FAILURE;
    };
    let mut tell = File::from(tell);
    let name = name.to_string_lossy();
    let places = (Path::new(&root), Path::new(&folder));
    let first = match restore_inside(&name, places, connections == CLOSED) {
        Ok(first) => first,
        Err(error) => {
            let _ = tell.write_all(error.to_string().as_bytes());
            return ExitCode::FAILURE;
        }
    };
    if tell.write_all(RESTORED).is_err() {
        return ExitCode::FAILURE;
    }
    let pid = first.as_raw_nonzero().to_string();
    let error = Command::new(PROGRAM)
        .arg0("init")
        .args([FIRST, &pid])
        .exec();
    eprintln!("insula: {PROGRAM}: {error}");
    ExitCode::FAILURE
}

fn restore_inside(
    name: &str,
    (root, folder): (&Path, &Path),
    close_connections: bool,
) -> io::Result<Pid> {
    // None of them can be reached by a path from the container's root.
    let images = Kept::open(&folder.join(IMAGES))?;
    let work = Kept::open(&folder.join(WORK))?;
    let criu = Kept::open(Path::new(CRIU_FOLDER)).ok();
    inside::prepare(name, (root, Path::new("/")))?;
    fs::copy(SELF, PROGRAM)?;
    leave_pids()?;
    let folder = criu.as_ref().map_or_else(PathBuf::new, Kept::path);
    let mut criu = Criu::elsewhere(&folder, &images.path(), &work.path())?;
    criu.restores(close_connections);
    let restored = criu.run();
    // There is none if CRIU is as it was.
    let _ = fs::remove_file(CRIU_CACHE);
    restored?;
    let first = restored_process(&work.path())?;
    join_time(first)?;
    Ok(first)
}

/// Enters the time namespace of a process: CRIU has the clocks of all that it restores go on in one, and can
/// dump those only that all processes of a container are in.
fn join_time(pid: Pid) -> io::Result<()> {
    let namespace = File::open(format!("/proc/{}/ns/time", pid.as_raw_nonzero()))?;
    let time = Some(LinkNameSpaceType::Time);
    Ok(move_into_link_name_space(namespace.as_fd(), time)?)
}

/// Has the next processes get the highest ids.
fn leave_pids() -> io::Result<()> {
    let max = fs::read_to_string(PID_MAX)?;
    let max: u32 = max.trim().parse().map_err(io::Error::other)?;
    fs::write(LAST_PID, max.saturating_sub(CRIU_PIDS).to_string())
}

/// A folder that other programs can reach, too, whatever their root is.
struct Kept(OwnedFd);

impl Kept {
    fn open(path: &Path) -> io::Result<Self> {
        // Not closed when another program is executed.
        Ok(Self(openat(CWD, path, OFlags::DIRECTORY, Mode::empty())?))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd()))
    }
}

/// Is the first process of a container: waits for all others, and ends with the one of this id.
pub(crate) fn run_first(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let pid = words.next().unwrap_or_default();
    let pid = pid.to_string_lossy().parse().ok().and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return ExitCode::FAILURE;
    };
    let signals = Signals::new(PASSED.iter().chain([&SIGCHLD]));
    let Ok(mut signals) = signals else {
        return ExitCode::FAILURE;
    };
    loop {
        // One may have ended before its signal was caught.
        if let Some(status) = reap(pid) {
            return ExitCode::from(status.status());
        }
        for signal in signals.wait() {
            let passed = Some(signal).filter(|signal| PASSED.contains(signal));
            if let Some(signal) = passed.and_then(Signal::from_named_raw) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

/// Waits for all that have ended; the status of the one of this id, if it has.
fn reap(first: Pid) -> Option<ExitStatus> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == first => return Some(one::exit_status(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            // None left, or none that has ended.
            Ok(None) => return None,
            Err(_) => return Some(ExitStatus::Exited(0)),
        }
    }
}
