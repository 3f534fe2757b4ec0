//! Programs that are run in a container besides its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use insula_agent::ExecAs;
use rustix::io::dup;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};

use super::cgroup::Cgroup;
use super::namespaces;
use crate::namespace::unshare;
use crate::program::Program;

/// Namespaces that a thread can join; those of clocks only a process with one thread can.
const NAMESPACES: ThreadNameSpaceType = ThreadNameSpaceType::MOUNT
    .union(ThreadNameSpaceType::PROCESS_ID)
    .union(ThreadNameSpaceType::NETWORK)
    .union(ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION)
    .union(ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME);

/// Starts a program in the namespaces and the control group of a container with this first process.
pub(super) fn start(name: &str, pid: Pid, request: &ExecAs) -> io::Result<Program> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let (gate, opener) = io::pipe()?;
    let gate = OwnedFd::from(gate);
    let request = request.clone();
    let mut program = namespaces::in_thread(move || {
        // The mounts of a thread that shares its root with others cannot be changed.
        unshare(UnshareFlags::FS)?;
        move_into_thread_name_spaces(process.as_fd(), NAMESPACES)?;
        // This one is not closed when the program is executed.
        Program::start_as(&request, Some(&dup(&gate)?))
    })?;
    let added = Cgroup::of(name).add(Pid::from_child(&program.child));
    drop(opener);
    if added.is_err() {
        program.child.kill()?;
        program.child.wait()?;
    }
    added.map(|()| program)
}
