//! Locks that keep others from writing to a node's disks.
//!
//! A block device is opened exclusively for writing: the kernel then refuses to mount it, to swap
//! on it and to add it to a volume, and refuses us if it is in such use. In addition each file and
//! device is locked (`flock`), for one writer or any number of readers, also between concurrent
//! commands that do not know of each other's nodes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc::O_EXCL;

use super::identity::Identity;

/// A file or block device that nobody else may write to as long as this lives.
#[derive(Debug)]
pub struct Lock {
    identity: Identity,
    /// Held, not used.
    _file: File,
}

/// Why a file or block device cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another program has locked it.
    #[error("another program uses it")]
    Busy,
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] io::Error),
}

impl Lock {
    /// Locks what is at that path: for one writer, or shared with other readers.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(path: &Path, read_only: bool) -> Result<Self, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only);
        if !read_only && path.metadata()?.file_type().is_block_device() {
            options.custom_flags(O_EXCL);
        }
        let file = options
            .open(path)
            .map_err(|error| match error.raw_os_error() {
                Some(errno) if errno == Errno::EBUSY as i32 => LockError::Busy,
                _ => error.into(),
            })?;
        let locked = match read_only {
            true => file.try_lock_shared(),
            false => file.try_lock(),
        };
        match locked {
            Err(TryLockError::WouldBlock) => Err(LockError::Busy),
            // Without file locks, only the nodes' records keep nodes apart.
            Err(TryLockError::Error(_)) | Ok(()) => Ok(Self {
                identity: Identity::of_file(&file)?,
                _file: file,
            }),
        }
    }

    /// What is locked, whatever is at its path by now.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_writer_or_any_number_of_readers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let take = |read_only| Lock::take(file.path(), read_only);
        let is_busy = |read_only| matches!(take(read_only), Err(LockError::Busy));
        let writer = take(false).unwrap();
        assert!(is_busy(false) && is_busy(true));
        drop(writer);
        let readers = [take(true).unwrap(), take(true).unwrap()];
        assert!(is_busy(false));
        drop(readers);
        take(false).unwrap();
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let none = Lock::take(Path::new("/none"), true);
        assert!(matches!(none, Err(LockError::Open(_))));
    }
}
