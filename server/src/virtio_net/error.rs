//! Failures of a network card.

use nix::errno::Errno;

/// Why a network card cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It has gone, or wants to be reset.
    #[error("the network card has failed")]
    Failed,
    /// It takes too long: for what.
    #[error("the network card takes too long to {0}")]
    TimedOut(&'static str),
    /// It says what makes no sense.
    #[error("the network card says what makes no sense: {0}")]
    Malformed(&'static str),
    /// The driver does not support it.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The kernel refuses.
    #[error("{0}")]
    Kernel(#[from] Errno),
}
