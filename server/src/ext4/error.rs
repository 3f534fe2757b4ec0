//! Failures of the file system.

use nix::errno::Errno;

use crate::block::DeviceError;

/// Why a file system on disk cannot be mounted, or a call on it fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error("the device fails: {0}")]
    Device(#[from] DeviceError),
    /// The device has no ext4 file system.
    #[error("it has no ext4 file system: `mke2fs -t ext4` makes one")]
    NoExt4,
    /// It has features, or sizes, that are not supported. Nothing was written.
    #[error("it has what is not supported: {0}. Nothing was written")]
    Unsupported(String),
    /// What is on disk contradicts itself.
    #[error("the file system is damaged ({0}): `e2fsck -f` repairs it")]
    Damaged(&'static str),
    /// There is no room.
    #[error("no room is left")]
    NoRoom,
    /// The call is not possible.
    #[error("{0}")]
    Call(Errno),
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            Error::Device(_) => Self::EIO,
            Error::NoExt4 | Error::Damaged(_) => Self::EUCLEAN,
            Error::Unsupported(_) => Self::EOPNOTSUPP,
            Error::NoRoom => Self::ENOSPC,
            Error::Call(errno) => errno,
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Call(errno)
    }
}

/// Result of what reads or writes the disk.
pub(super) type Result<T> = std::result::Result<T, Error>;
