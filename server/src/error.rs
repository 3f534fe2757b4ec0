//! Failures of calls.

use nix::errno::Errno;

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This is no node of the lightweight kernel.
    #[error("messages exist only on a node of the lightweight kernel: start it by `insula exec`")]
    NotOnANode,
    /// No endpoint has that name.
    #[error("no server of that name runs on this node")]
    NoServer,
    /// The endpoint has a server already.
    #[error("that name has a server already")]
    NameTaken,
    /// The server went before it replied. It may have done what it was asked for, or not.
    #[error("the server ended before it replied")]
    ServerGone,
    /// There was no reply in time. The request is taken back.
    #[error("no reply in time")]
    TimedOut,
    /// A signal came. The request is taken back.
    #[error("interrupted by a signal")]
    Interrupted,
    /// The client of a request has gone, or has taken it back.
    #[error("the client has gone")]
    ClientGone,
    /// Another error, of the kernel.
    #[error("{0}")]
    Other(Errno),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::NotOnANode,
            Errno::ENOENT => Self::NoServer,
            Errno::EEXIST => Self::NameTaken,
            Errno::ECONNRESET => Self::ServerGone,
            Errno::ETIMEDOUT => Self::TimedOut,
            Errno::EINTR => Self::Interrupted,
            Errno::ESRCH => Self::ClientGone,
            errno => Self::Other(errno),
        }
    }
}
