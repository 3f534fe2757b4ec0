//! Failures of a controller.

use nix::errno::Errno;

/// Why a controller cannot be used, or has not done what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It does not answer, or has gone.
    #[error("the controller has gone")]
    Gone,
    /// It reports a fatal error.
    #[error("the controller reports a fatal error")]
    Fatal,
    /// It has taken too long: for what.
    #[error("the controller takes too long to {0}")]
    TimedOut(&'static str),
    /// It was stopped after one of these.
    #[error("the controller was stopped after an error")]
    Stopped,
    /// It answers what makes no sense.
    #[error("the controller answers what makes no sense: {0}")]
    Malformed(&'static str),
    /// The driver does not support it.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// A command has failed: type and code of its status (4.6.1).
    #[error("the command failed with status {kind:#x}:{code:#x}")]
    Status {
        /// Type of the status.
        kind: u8,
        /// Its code.
        code: u8,
    },
    /// The kernel refuses.
    #[error("{0}")]
    Kernel(#[from] Errno),
}

impl Error {
    /// Returns the error of a block device for it.
    #[must_use]
    pub fn errno(self) -> Errno {
        /// Generic ones (4.6.1.2.1): blocks beyond the end, and a namespace that is write protected.
        const OUT_OF_RANGE: (u8, u8) = (0, 0x80);
        const WRITE_PROTECTED: (u8, u8) = (0, 0x20);
        match self {
            Self::Kernel(errno) => errno,
            Self::TimedOut(_) => Errno::ETIMEDOUT,
            Self::Gone => Errno::ENODEV,
            Self::Unsupported(_) => Errno::EOPNOTSUPP,
            Self::Status { kind, code } if (kind, code) == OUT_OF_RANGE => Errno::ENXIO,
            Self::Status { kind, code } if (kind, code) == WRITE_PROTECTED => Errno::EROFS,
            Self::Fatal | Self::Stopped | Self::Malformed(_) | Self::Status { .. } => Errno::EIO,
        }
    }
}
