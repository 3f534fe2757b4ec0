//! What is kept of a container for the case that the server is killed, and another one takes its place.
//!
//! In the container's folder there is a file with its state. Its output is a pipe, which breaks when nobody
//! has its reading end open: another process has, too, from which the next server gets it. A container whose
//! server was killed is a child of the first process of the node, which keeps its status.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use insula_agent::ExitStatus;
use insula_agent::container::{ContainerSpec, Phase};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::stdio::stdin;
use serde::{Deserialize, Serialize};

use crate::program::SELF;

/// Role of this program: to have the pipe open that is its standard input, until nobody writes to it.
pub(crate) const HOLD: &str = "hold";
/// File in a container's folder.
const STATE: &str = "state";
const NEW_STATE: &str = "state.new";
/// Folder of the statuses of containers that are children of the first process, by process id.
const STATUSES: &str = "/run/insula/statuses";
/// Time until the first process has written a status, and the interval of looks.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(10);

/// What is kept of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) spec: ContainerSpec,
    /// Its first process.
    pub(super) pid: i32,
    pub(super) phase: Phase,
    /// Whether it is kept though it stands still: its source may have removed it.
    pub(super) is_kept: bool,
    /// The process that has its output open.
    pub(super) holder: u32,
}

impl Kept {
    /// Writes it to the container's folder.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let new = folder.join(NEW_STATE);
        fs::write(&new, bytes)?;
        fs::rename(new, folder.join(STATE))
    }

    /// That of the container with this folder; none if it was not complete.
    pub(super) fn read(folder: &Path) -> Option<Self> {
        let bytes = fs::read(folder.join(STATE)).ok()?;
        postcard::from_bytes(&bytes).ok()
    }

    /// Removes it: from then on no other server takes the container over.
    pub(super) fn remove(folder: &Path) -> io::Result<()> {
        match fs::remove_file(folder.join(STATE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The reading end of its output.
    pub(super) fn output(&self) -> io::Result<File> {
        let opened = File::open(format!("/proc/{}/fd/0", self.holder));
        // Without, nothing more of it is logged.
        opened.or_else(|_| File::open("/dev/null"))
    }
}

/// Starts a process that has the reading end of a pipe open.
pub(super) fn hold(output: &File) -> io::Result<u32> {
    let mut holder = Command::new(SELF)
        .arg(HOLD)
        .stdin(Stdio::from(output.try_clone()?))
        .stdout(Stdio::null())
        .spawn()?;
    let pid = holder.id();
    thread::spawn(move || holder.wait());
    Ok(pid)
}

/// Has a pipe open until nobody can write to it any more.
pub(crate) fn hold_input() -> ExitCode {
    loop {
        // Bytes that can be read are of no interest.
        match poll(&mut [PollFd::new(&stdin(), PollFlags::empty())], None) {
            Err(Errno::INTR) => {}
            Ok(_) => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// Has the first process keep the status of a process, if that becomes its child.
pub(super) fn want_status(pid: Pid) -> io::Result<()> {
    fs::create_dir_all(STATUSES)?;
    File::create(status_file(pid)).map(drop)
}

/// Nobody asks for its status any more.
pub(super) fn forget_status(pid: Pid) {
    let _ = fs::remove_file(status_file(pid));
}

/// Keeps the status of a child of the first process, if it is wanted.
pub(crate) fn keep_status(pid: Pid, status: ExitStatus) {
    let file = status_file(pid);
    if file.exists() {
        let bytes = postcard::to_stdvec(&status).unwrap_or_default();
        // Without, it is said to have been killed.
        let _ = fs::write(file, bytes);
    }
}

fn status_file(pid: Pid) -> PathBuf {
    Path::new(STATUSES).join(pid.as_raw_nonzero().to_string())
}

/// Waits for the end of a process that is a child of the first one; its status.
pub(super) fn wait(pid: Pid) -> ExitStatus {
    if let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) {
        while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
    }
    status(pid)
}

/// The status of a process that has ended as a child of the first one; that of a killed one if it is not known.
pub(super) fn status(pid: Pid) -> ExitStatus {
    let began = Instant::now();
    loop {
        let bytes = fs::read(status_file(pid)).unwrap_or_default();
        match postcard::from_bytes(&bytes) {
            Ok(status) => return status,
            Err(_) if began.elapsed() < STATUS_TIMEOUT => thread::sleep(INTERVAL),
            Err(_) => return ExitStatus::Killed(9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Kept::read(folder.path()), None);
        let kept = Kept {
            spec: ContainerSpec {
                name: "shop".into(),
                address: Some([10, 78, 255, 1].into()),
                ..ContainerSpec::default()
            },
            pid: 7,
            phase: Phase::Restored,
            is_kept: true,
            holder: 8,
        };
        kept.write(folder.path()).unwrap();
        assert_eq!(Kept::read(folder.path()), Some(kept));
        Kept::remove(folder.path()).unwrap();
        assert_eq!(Kept::read(folder.path()), None);
        // One that was cut off is none.
        fs::write(folder.path().join(STATE), b"\x04sh").unwrap();
        assert_eq!(Kept::read(folder.path()), None);
    }
}
