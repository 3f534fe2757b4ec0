//! An open file description, which has one offset for all descriptors of it.

use nix::errno::Errno;
use nix::libc;

use crate::files::system::Inode;

/// Status flags that programs may change by fcntl(2).
const CHANGEABLE: u32 =
    (libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME) as u32;

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) inode: Inode,
    /// Flags of open(2).
    pub(super) flags: u32,
    /// Bytes; of a directory, the place of the last entry that was listed.
    pub(super) offset: u64,
    /// Number of the last offset that the kernel has told.
    pub(super) told: u64,
}

impl Description {
    fn has(&self, flag: i32) -> bool {
        self.flags & flag as u32 == flag as u32
    }

    /// Whether writes go to the end.
    pub(super) fn appends(&self) -> bool {
        self.has(libc::O_APPEND)
    }

    /// Whether it is a place alone, without access to the content.
    pub(super) fn is_path(&self) -> bool {
        self.has(libc::O_PATH)
    }

    /// Fails with [`Errno::EBADF`] unless the content may be read.
    pub(super) fn may_read(&self) -> Result<(), Errno> {
        let mode = self.flags as i32 & libc::O_ACCMODE;
        match !self.is_path() && matches!(mode, libc::O_RDONLY | libc::O_RDWR) {
            true => Ok(()),
            false => Err(Errno::EBADF),
        }
    }

    /// Fails with [`Errno::EBADF`] unless it may be written.
    pub(super) fn may_write(&self) -> Result<(), Errno> {
        let mode = self.flags as i32 & libc::O_ACCMODE;
        match !self.is_path() && matches!(mode, libc::O_WRONLY | libc::O_RDWR) {
            true => Ok(()),
            false => Err(Errno::EBADF),
        }
    }

    /// Sets the status flags that can be changed. Returns the old flags.
    pub(super) fn set_flags(&mut self, flags: u32) -> u32 {
        let before = self.flags;
        self.flags = before & !CHANGEABLE | flags & CHANGEABLE;
        before
    }
}
