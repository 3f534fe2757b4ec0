//! Connections that a killed CRIU has left in repair mode: for as long as it reads their state, their programs can use
//! them for nothing (`EPERM`).

use std::ffi::c_int;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::cgroup::Cgroup;
use crate::log::log;

/// `TCP_REPAIR`, and its end without a probe to the peer (kernel: include/uapi/linux/tcp.h).
const TCP_REPAIR: c_int = 19;
const OFF_NO_WP: c_int = -1;
/// How `/proc/PID/fd` begins for a socket.
const SOCKET: &str = "socket:";

/// Ends it for all sockets of a container, which stands still. What cannot be done is logged: it goes on all the same.
pub(super) fn end(container: &str) {
    let processes = Cgroup::of(container).processes().unwrap_or_default();
    for pid in processes.into_iter().filter_map(Pid::from_raw) {
        let ended = sockets(pid).and_then(|sockets| sockets.iter().try_for_each(end_one));
        if let Err(error) = ended {
            log(&format!("container {container}: its connections: {error}"));
        }
    }
}

fn end_one(socket: &OwnedFd) -> io::Result<()> {
    match is_repaired(socket) {
        // That also takes the permission to reuse its address, which who restarts a server needs.
        true => {
            set(socket, (libc::IPPROTO_TCP, TCP_REPAIR), OFF_NO_WP)?;
            set(socket, (libc::SOL_SOCKET, libc::SO_REUSEADDR), 1)
        }
        false => Ok(()),
    }
}

/// The sockets of a process.
fn sockets(pid: Pid) -> io::Result<Vec<OwnedFd>> {
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))? {
        let entry = entry?;
        let number = entry.file_name().to_string_lossy().parse();
        let is_socket = fs::read_link(entry.path())
            .is_ok_and(|link| link.to_string_lossy().starts_with(SOCKET));
        if let (Ok(number), true) = (number, is_socket) {
            found.push(pidfd_getfd(&process, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(found)
}

/// Whether a socket is in repair mode; one that is not of TCP has none.
#[allow(unsafe_code, reason = "the option has no safe name")]
fn is_repaired(socket: &OwnedFd) -> bool {
    let (mut value, mut size): (c_int, _) = (0, size_of::<c_int>() as libc::socklen_t);
    let at = (&raw mut value).cast();
    // SAFETY: the value has that size, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_REPAIR,
            at,
            &raw mut size,
        )
    };
    failed == 0 && value != 0
}

/// Sets an option of a level.
#[allow(unsafe_code, reason = "one of the options has no safe name")]
fn set(socket: &OwnedFd, (level, option): (c_int, c_int), value: c_int) -> io::Result<()> {
    let size = size_of::<c_int>() as libc::socklen_t;
    let at = (&raw const value).cast();
    // SAFETY: the value has that size, and outlives the call.
    let failed = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, size) };
    match failed {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::process;

    use super::*;

    #[test]
    fn sockets_of_a_process_are_found_and_not_in_repair() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = Pid::from_raw(process::id().cast_signed()).unwrap();
        assert!(sockets(own).unwrap().len() >= 3);
        for socket in [OwnedFd::from(stream), other.into()] {
            assert!(!is_repaired(&socket));
        }
    }
    #[test]
    fn a_connection_works_again_after_a_repair() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = OwnedFd::from(stream.try_clone().unwrap());
        let begun = set(&socket, (libc::IPPROTO_TCP, TCP_REPAIR), 1);
        // Only root may begin one.
        if begun.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return;
        }
        stream.set_nonblocking(true).unwrap();
        let read = || (&stream).read(&mut [0]).unwrap_err().kind();
        assert_eq!(read(), io::ErrorKind::PermissionDenied);
        end_one(&socket).unwrap();
        assert!(!is_repaired(&socket));
        assert_eq!(read(), io::ErrorKind::WouldBlock);
    }
}
