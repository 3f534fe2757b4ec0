//! Giving a descriptor of this process to a stopped one: by a socket pair of that one, an end of which
//! this process takes.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::failure::Failure;
use crate::stopped::Stopped;

/// What fails.
const PASSING: &str = "passing it a descriptor";
/// Size of `struct cmsghdr`.
const HEADER_SIZE: u64 = 16;

/// Gives the process with an id a descriptor. Returns its number there. `scratch` is memory of the
/// process.
pub(crate) fn pass(
    pid: i32,
    stopped: &mut Stopped,
    scratch: u64,
    fd: BorrowedFd<'_>,
) -> Result<u64, Failure> {
    let failed = || Failure::of(PASSING);
    let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
    let arguments = [libc::AF_UNIX as u64, kind, 0, scratch];
    stopped
        .call(0, libc::SYS_socketpair, &arguments)
        .map_err(failed())?;
    let [both] = stopped.memory.words(scratch)?;
    let ends = [both & u64::from(u32::MAX), both >> 32];
    let received = take(pid, ends[0])
        .and_then(|own| send(&own, fd))
        .and_then(|()| receive(stopped, scratch, ends[1]));
    for end in ends {
        stopped.call(0, libc::SYS_close, &[end]).map_err(failed())?;
    }
    received
}

/// Takes a copy of a descriptor of a process.
pub(crate) fn take(pid: i32, end: u64) -> Result<OwnedFd, Failure> {
    let failed = || Failure::of(PASSING);
    let pid = Pid::from_raw(pid).ok_or_else(|| Failure::new(PASSING, Errno::ESRCH))?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(failed())?;
    pidfd_getfd(process.as_fd(), end as i32, PidfdGetfdFlags::empty()).map_err(failed())
}

fn send(own: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Failure> {
    let fds = [fd.as_raw_fd()];
    let messages = [ControlMessage::ScmRights(&fds)];
    let bytes = [IoSlice::new(&[0])];
    let sent = sendmsg::<()>(own.as_raw_fd(), &bytes, &messages, MsgFlags::empty(), None);
    sent.map(drop).map_err(Failure::of(PASSING))
}

/// Has the process receive it.
fn receive(stopped: &mut Stopped, scratch: u64, end: u64) -> Result<u64, Failure> {
    let (part, byte, control) = (scratch + 64, scratch + 128, scratch + 192);
    let control_size = HEADER_SIZE + 8;
    // struct msghdr, then struct iovec.
    let message = [0, 0, part, 1, control, control_size, 0, 0, byte, 1];
    let bytes: Vec<u8> = message.iter().copied().flat_map(u64::to_ne_bytes).collect();
    stopped.memory.write(scratch, &bytes)?;
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
    let received = stopped.call(0, libc::SYS_recvmsg, &[end, scratch, flags]);
    received.map_err(Failure::of(PASSING))?;
    let [size] = stopped.memory.words(control)?;
    let [number] = stopped.memory.words(control + HEADER_SIZE)?;
    match size == HEADER_SIZE + 4 {
        true => Ok(number & u64::from(u32::MAX)),
        // It may have no more.
        false => Err(Failure::new(PASSING, Errno::EMFILE)),
    }
}
