//! What is done in a container besides its own program: others, and copies of files.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use insula_agent::ExecAs;
use rustix::io::dup;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};

use super::cgroup::Cgroup;
use super::namespaces;
use crate::namespace::unshare;
use crate::program::{Program, Signalled};

/// Namespaces that a thread can join; those of clocks only a process with one thread can.
const NAMESPACES: ThreadNameSpaceType = ThreadNameSpaceType::MOUNT
    .union(ThreadNameSpaceType::PROCESS_ID)
    .union(ThreadNameSpaceType::NETWORK)
    .union(ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION)
    .union(ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME);

/// Does something by a thread that has the mounts of a container with this first process.
pub(super) fn in_mounts<T: Send + 'static>(
    pid: Pid,
    what: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    namespaces::in_thread(move || {
        enter(process.as_fd(), ThreadNameSpaceType::MOUNT)?;
        what()
    })
}

/// Enters namespaces of a process.
fn enter(process: BorrowedFd<'_>, namespaces: ThreadNameSpaceType) -> io::Result<()> {
    // The mounts of a thread that shares its root with others cannot be changed.
    unshare(UnshareFlags::FS)?;
    Ok(move_into_thread_name_spaces(process, namespaces)?)
}

/// Starts a program in the namespaces and the control group of a container with this first process.
pub(super) fn start(name: &str, pid: Pid, request: &ExecAs) -> io::Result<Program> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let (gate, opener) = io::pipe()?;
    let gate = OwnedFd::from(gate);
    let request = request.clone();
    let mut program = namespaces::in_thread(move || {
        enter(process.as_fd(), NAMESPACES)?;
        // This one is not closed when the program is executed.
        Program::start_as(&request, Some(&dup(&gate)?))
    })?;
    let added = Cgroup::of(name).add(Pid::from_child(&program.child));
    if added.is_err() {
        program.child.kill()?;
        program.child.wait()?;
    }
    drop(opener);
    program.signalled = Signalled::Program;
    added.map(|()| program)
}
