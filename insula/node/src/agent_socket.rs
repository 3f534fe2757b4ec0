//! Connecting to the agents of nodes: by sockets whose port only privileged processes have.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use insula_agent::{COMMAND_PORT_MAX, PORT};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, socket};

use super::attachment;

/// The lowest port that is tried; lower ones may have fixed users.
const PORT_MIN: u32 = 512;

/// Distance of the ports at which commands with successive process ids start.
const PORT_STEP: u32 = 37;
/// Any of the base's addresses (`VMADDR_CID_ANY`).
const ANY_CID: u32 = u32::MAX;
/// Exists once Linux can serve nodes' sockets, from the first node with a driver for them on. The first socket of a
/// base without has Linux load what serves them, and transports of other hypervisors.
const SERVED: &str = "/sys/class/misc/vhost-vsock";

/// Connections that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Makes one attempt to connect to the agent of the node with this id; the inner error is that of an agent that
/// does not answer.
///
/// # Errors
/// When there is no socket, as without the privilege for it.
pub fn connect_to_agent(node_id: u32) -> Result<Result<OwnedFd, Errno>, Errno> {
    if !Path::new(SERVED).exists() {
        return Ok(Err(Errno::ENODEV));
    }
    let socket = reserved_socket()?;
    let address = VsockAddr::new(attachment::cid(node_id), PORT);
    Ok(connect(socket.as_raw_fd(), &address).map(|()| socket))
}

/// A socket with a privileged port, as agents require.
fn reserved_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    let count = COMMAND_PORT_MAX - PORT_MIN + 1;
    // Concurrent commands start at different ports, and so do connections of one: as long as the agent
    // has not closed its end of an earlier one, another from the same port is reset.
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let first = process::id().wrapping_mul(PORT_STEP).wrapping_add(made) % count;
    for step in 0..count {
        let port = PORT_MIN + (first + step) % count;
        match bind(socket.as_raw_fd(), &VsockAddr::new(ANY_CID, port)) {
            Err(Errno::EADDRINUSE) => {}
            bound => return bound.map(|()| socket),
        }
    }
    Err(Errno::EADDRINUSE)
}
