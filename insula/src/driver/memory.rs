//! Memory objects.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use insula_abi as abi;

use super::{CallError, MapError, Mapping, ioctl};

/// A memory object: an ordered list of chunks of physical memory.
///
/// What nothing else refers to is cleared and given back when this is dropped.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
}

impl Memory {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Takes more memory, appended to what there is (`INSULA_MEMORY_GROW`).
    ///
    /// # Errors
    /// What the module answered; `ENOMEM` when there is not enough of the kind.
    pub fn grow(&self, request: &abi::Request) -> Result<(), CallError> {
        ioctl::memory_grow(self.fd.as_fd(), *request)
    }

    /// Where the memory lies, in order of offset (`INSULA_MEMORY_CHUNKS`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn chunks(&self) -> Result<Vec<abi::Chunk>, CallError> {
        ioctl::memory_chunks(self.fd.as_fd())
    }

    /// Copies `size` bytes of another object, from its offset `from` on, to this one's offset `to`
    /// (`INSULA_MEMORY_COPY`).
    ///
    /// # Errors
    /// What the module answered; `EINVAL` when they do not lie in both objects.
    pub fn copy_from(&self, source: &Self, from: u64, to: u64, size: u64) -> Result<(), CallError> {
        ioctl::memory_copy(self.fd.as_fd(), source.fd.as_fd(), from, to, size)
    }

    /// Takes it from all processes, for good: whoever touches a mapping of it gets SIGBUS
    /// (`INSULA_MEMORY_REVOKE`). Its memory goes back when no image and no node has it any more.
    ///
    /// # Errors
    /// What the module answered; `ENODEV` when it was revoked before.
    pub fn revoke(&self) -> Result<(), CallError> {
        ioctl::memory_revoke(self.fd.as_fd())
    }

    /// The bytes that describe the image it was opened as (`INSULA_DESCRIPTION`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn description(&self) -> Result<Vec<u8>, CallError> {
        ioctl::description(self.fd.as_fd())
    }

    /// Maps all of it.
    ///
    /// # Errors
    /// What the module or the kernel answered.
    pub fn map(&self) -> Result<Mapping, MapError> {
        Mapping::new(self.fd.as_fd(), self.chunks()?)
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
