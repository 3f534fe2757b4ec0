//! A call that the kernel makes for a dying program, and to which no reply comes: the core file's
//! name is that of a FIFO, which nobody reads. Other programs of the same core run on meanwhile.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use nix::sys::signal::{Signal, raise};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, fork, getppid, mkfifo};

use crate::lwk::threads::priorities::stay_on_first_core;
use crate::lwk::{Named, ProbeError};

/// Pauses, in which the other program gets the core, and calls after each.
const PAUSES: usize = 20;
const PAUSE: Duration = Duration::from_millis(10);
const CALLS: usize = 50;

pub(crate) fn probe() -> Result<(), ProbeError> {
    let directory = std::env::temp_dir().join(format!("late-replies-{}", std::process::id()));
    let wrong = |error: std::io::Error| ProbeError::Wrong(format!("{directory:?}: {error}"));
    fs::create_dir(&directory).map_err(wrong)?;
    let done = crash_beside(&directory);
    fs::remove_dir_all(&directory).map_err(wrong)?;
    done
}

fn crash_beside(directory: &Path) -> Result<(), ProbeError> {
    if !stay_on_first_core() {
        return Err(ProbeError::Wrong("it cannot stay on one core".into()));
    }
    let fifo = directory.join("core");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).named("mkfifo")?;
    let child = crash_in(directory)?;
    for _ in 0..PAUSES {
        sleep(PAUSE);
        for _ in 0..CALLS {
            let _ = getppid();
        }
    }
    // With a reader, the FIFO can be opened for writing.
    let reader = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&fifo);
    let reader = reader.map_err(|error| ProbeError::Wrong(format!("{fifo:?}: {error}")))?;
    let ended = waitpid(child, None).named("waiting for a child")?;
    drop(reader);
    match ended {
        WaitStatus::Signaled(_, Signal::SIGABRT, _) => {
            println!("{} calls beside a crash", PAUSES * CALLS);
            Ok(())
        }
        other => Err(ProbeError::Wrong(format!("a crash: {other:?}"))),
    }
}

/// Starts a process that crashes in a directory.
fn crash_in(directory: &Path) -> Result<Pid, ProbeError> {
    // SAFETY: this program has one thread.
    match unsafe { fork() }.named("fork")? {
        ForkResult::Parent { child } => Ok(child),
        ForkResult::Child => {
            // Without them there is no core file, and nothing to wait for.
            let _ = setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY);
            let _ = chdir(directory);
            let _ = raise(Signal::SIGABRT);
            // SAFETY: it ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
    }
}
