//! A file or block device of the base as a block device.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Error, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;

use super::{Access, BlockDevice, DeviceError, check};

/// Bytes of a block: the smallest that Linux' block devices have.
const BLOCK: usize = 512;

/// A file or block device of the base. Each access is a call to the base.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    count: u64,
}

impl FileDevice {
    /// Opens a file or block device for reading and writing, and locks it (flock(2)) until it is dropped:
    /// so that no other server has it at the same time. Linux' own mounts do not look at that lock.
    ///
    /// # Errors
    /// Those of open(2); [`Errno::EBUSY`] if another one has locked it.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        let open = || -> Result<Self, Error> {
            let mut file = OpenOptions::new().read(true).write(true).open(path)?;
            file.try_lock().map_err(|error| match error {
                TryLockError::WouldBlock => Errno::EBUSY.into(),
                TryLockError::Error(error) => error,
            })?;
            // Block devices have no size in their attributes.
            let bytes = file.seek(SeekFrom::End(0))?;
            Ok(Self {
                file,
                count: bytes / BLOCK as u64,
            })
        };
        open().map_err(|error| failure(Access::Open, &error))
    }
}

fn failure(access: Access, error: &Error) -> DeviceError {
    DeviceError {
        access,
        errno: error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
    }
}

impl BlockDevice for FileDevice {
    fn block_size(&self) -> usize {
        BLOCK
    }

    fn block_count(&self) -> u64 {
        self.count
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        let access = Access::Read(block);
        check(self, access, to.len())?;
        let read = self.file.read_exact_at(to, block * BLOCK as u64);
        read.map_err(|error| failure(access, &error))
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        let access = Access::Write(block);
        check(self, access, from.len())?;
        let written = self.file.write_all_at(from, block * BLOCK as u64);
        written.map_err(|error| failure(access, &error))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        let flushed = self.file.sync_data();
        flushed.map_err(|error| failure(Access::Flush, &error))
    }
}

#[test]
fn a_file_has_one_user_at_a_time() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let first = FileDevice::open(file.path()).unwrap();
    let second = FileDevice::open(file.path()).unwrap_err();
    assert_eq!((second.access, second.errno), (Access::Open, Errno::EBUSY));
    drop(first);
    assert!(FileDevice::open(file.path()).is_ok());
}
