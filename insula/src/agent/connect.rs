//! Reaching a node's agent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process;
use std::time::{Duration, Instant};

use insula_agent::{COMMAND_PORT_MAX, PORT};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, socket};
use vsock::{VMADDR_CID_ANY, VsockStream};

use crate::driver::Driver;
use crate::name::Name;
use crate::node::{self, FindError};
use crate::{supervisor, virtio};

/// How long a node may take until its agent listens. An emulated one boots slowly.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is asked.
const INTERVAL: Duration = Duration::from_millis(20);
/// The lowest port that is tried: those below may be somebody's.
const PORT_MIN: u32 = 512;

/// Why a node's agent cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no such node.
    #[error(transparent)]
    Node(#[from] FindError),
    /// It does not run.
    #[error("the node '{0}' does not run; nothing was begun\nstart it with `insula restart {0}`")]
    NotRunning(Name),
    /// Nobody listens there.
    #[error(
        "the node '{name}' has no agent that answers ({source}); nothing was begun\n\
         images with an agent are made by `insula image build`; `insula logs {name}` shows how far \
         the node has come"
    )]
    NoAnswer {
        /// The node.
        name: Name,
        /// What the last attempt met with.
        source: io::Error,
    },
    /// This process may not, or cannot, speak to nodes.
    #[error("no socket to nodes: {0}; nothing was begun")]
    Socket(io::Error),
}

/// A connection to a node's agent. The node may still be booting, or about to be started again.
///
/// # Errors
/// [`ConnectError`].
pub(super) fn to_agent(driver: &Driver, name: &Name) -> Result<VsockStream, ConnectError> {
    let began = Instant::now();
    loop {
        let handle = node::find(driver, name)?;
        // Who brings its sockets, or starts it again, may have been killed. If there is no other,
        // connecting fails.
        let _ = supervisor::attach(driver, std::slice::from_ref(&handle));
        if !handle.is_running() {
            let may_be = handle.is_unsupervised() || handle.may_come_back();
            let comes_back = may_be || handle.is_being_restarted();
            if !comes_back || began.elapsed() > PATIENCE {
                return Err(ConnectError::NotRunning(name.clone()));
            }
            std::thread::sleep(INTERVAL);
            continue;
        }
        let socket = reserved_socket().map_err(|errno| ConnectError::Socket(errno.into()))?;
        let address = VsockAddr::new(virtio::cid(handle.info.id), PORT);
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => return Ok(VsockStream::from(socket)),
            Err(errno) if began.elapsed() > PATIENCE => {
                return Err(ConnectError::NoAnswer {
                    name: name.clone(),
                    source: errno.into(),
                });
            }
            Err(_) => std::thread::sleep(INTERVAL),
        }
    }
}

/// A socket with a port that only a privileged process can have: agents listen to no other.
fn reserved_socket() -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    let count = COMMAND_PORT_MAX - PORT_MIN + 1;
    // Commands that run at one time begin at different ones.
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
