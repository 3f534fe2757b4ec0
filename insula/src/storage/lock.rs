//! Keeping others from writing to what a node has.
//!
//! A block device that is written to is opened exclusively: the kernel then refuses to mount it, to
//! swap on it and to make it part of a volume, and refuses us what is in such use. On top of that
//! each file and device is locked (`flock`), for one writer or for any number of readers, also
//! where two commands come at one moment, or know nothing of each other's nodes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::libc::O_EXCL;

/// A file or block device that is nobody else's to write to as long as this lives.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held, not used")] File);

/// Why a file or block device cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("another program uses it")]
    Busy,
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] io::Error),
}

impl Lock {
    /// Locks what is at that path: for one writer, or to share it with other readers.
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
            // Where files cannot be locked, nodes' records alone keep nodes apart.
            Err(TryLockError::Error(_)) | Ok(()) => Ok(Self(file)),
        }
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
    fn what_is_not_there_is_told() {
        let none = Lock::take(Path::new("/none"), true);
        assert!(matches!(none, Err(LockError::Open(_))));
    }
}
