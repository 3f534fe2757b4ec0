//! Connecting to a node's agent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process;
use std::time::{Duration, Instant};

use insula_agent::{COMMAND_PORT_MAX, PORT};
use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::attachment;
use insula_node::{self as node, FindError};
use insula_supervisor as supervisor;
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, socket};
use vsock::{VMADDR_CID_ANY, VsockStream};

/// Time a node gets until its agent listens; an emulated one boots slowly.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of attempts.
const INTERVAL: Duration = Duration::from_millis(20);
/// The lowest port that is tried; lower ones may have fixed users.
const PORT_MIN: u32 = 512;

/// Why there is no connection to a node's agent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The node was not found.
    #[error(transparent)]
    Node(#[from] FindError),
    /// It does not run.
    #[error("the node '{0}' is not running; nothing was done\nstart it with `insula restart {0}`")]
    NotRunning(Name),
    /// The agent does not answer.
    #[error(
        "the agent of the node '{name}' does not answer ({source}); nothing was done\n\
         `insula image build` makes images with an agent; `insula logs {name}` shows how far \
         the node has booted"
    )]
    NoAnswer {
        /// The node.
        name: Name,
        /// The error of the last attempt.
        source: io::Error,
    },
    /// This process cannot create a socket, or lacks the permission.
    #[error("the socket to nodes cannot be created: {0}; nothing was done")]
    Socket(io::Error),
}

/// Connects to a node's agent, waiting while the node boots or is about to be restarted.
///
/// # Errors
/// [`ConnectError`].
pub(super) fn to_agent(driver: &Driver, name: &Name) -> Result<VsockStream, ConnectError> {
    let began = Instant::now();
    loop {
        let handle = node::find(driver, name)?;
        // Its supervisor, which serves its sockets and restarts it, may have been killed. On
        // failure connecting fails as well.
        let _ = supervisor::ensure_supervised(driver, std::slice::from_ref(&handle));
        if !handle.is_running() {
            let may_restart = handle.is_unsupervised() || handle.may_restart();
            let will_run = may_restart || handle.is_being_restarted();
            if !will_run || began.elapsed() > BOOT_TIMEOUT {
                return Err(ConnectError::NotRunning(name.clone()));
            }
            std::thread::sleep(INTERVAL);
            continue;
        }
        let socket = reserved_socket().map_err(|errno| ConnectError::Socket(errno.into()))?;
        let address = VsockAddr::new(attachment::cid(handle.info.id), PORT);
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(VsockStream::from(socket)),
            Err(errno) if began.elapsed() > BOOT_TIMEOUT => {
                return Err(ConnectError::NoAnswer {
                    name: name.clone(),
                    source: errno.into(),
                });
            }
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}

/// A socket with a privileged port, as agents require.
fn reserved_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    let count = COMMAND_PORT_MAX - PORT_MIN + 1;
    // Concurrent commands start at different ports.
    let first = process::id() % count;
    for step in 0..count {
        let port = PORT_MIN + (first + step) % count;
        match bind(socket.as_raw_fd(), &VsockAddr::new(VMADDR_CID_ANY, port)) {
            Err(Errno::EADDRINUSE) => {}
            bound => return bound.map(|()| socket),
        }
    }
    Err(Errno::EADDRINUSE)
}
