//! Memory objects.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use insula_abi as abi;

use super::mapping::Access;
use super::{CallError, DriverError, Extent, Mapping, ioctl};

/// A memory object: an ordered list of chunks of physical memory.
///
/// When this is dropped, an object without other references is cleared and freed.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
}

impl Memory {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Allocates more memory, appended to the object (`INSULA_MEMORY_GROW`).
    ///
    /// # Errors
    /// The module's error; `ENOMEM` when there is not enough of the kind.
    pub fn grow(&self, request: &abi::Request) -> Result<(), CallError> {
        ioctl::memory_grow(self.fd.as_fd(), *request)
    }

    /// The object's chunks, in order of offset (`INSULA_MEMORY_CHUNKS`).
    ///
    /// # Errors
    /// The module's error.
    pub fn chunks(&self) -> Result<Vec<abi::Chunk>, CallError> {
        ioctl::memory_chunks(self.fd.as_fd())
    }

    /// Copies `size` bytes from offset `from` of another object to offset `to` of this one
    /// (`INSULA_MEMORY_COPY`).
    ///
    /// # Errors
    /// The module's error; `EINVAL` when the range is not within both objects.
    pub fn copy_from(&self, source: &Self, from: u64, to: u64, size: u64) -> Result<(), CallError> {
        ioctl::memory_copy(self.fd.as_fd(), source.fd.as_fd(), from, to, size)
    }

    /// The description of the image that it was opened as (`INSULA_DESCRIPTION`).
    ///
    /// # Errors
    /// The module's error.
    pub fn description(&self) -> Result<Vec<u8>, CallError> {
        ioctl::description(self.fd.as_fd())
    }

    /// What the object takes (`INSULA_MEMORY_USE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn usage(&self) -> Result<abi::MemoryUse, CallError> {
        ioctl::memory_use(self.fd.as_fd())
    }

    /// Stores which pages of a copy of a node are its own, for [`Self::own_set`] of later copies
    /// (`INSULA_MEMORY_STORE_SET`).
    ///
    /// # Errors
    /// The module's error; `EINVAL` when the object shows no other one.
    pub fn store_set(&self) -> Result<(), CallError> {
        ioctl::memory_store_set(self.fd.as_fd())
    }

    /// Makes those pages own that an earlier copy has written while it started
    /// (`INSULA_MEMORY_OWN_SET`).
    ///
    /// # Errors
    /// The module's error; `EINVAL` when the object shows no other one.
    pub fn own_set(&self) -> Result<(), CallError> {
        ioctl::memory_own_set(self.fd.as_fd())
    }

    /// The working set of the memory of a snapshot: the pages that its first copy had written when it was ready
    /// (`INSULA_MEMORY_LIST_SET`). Empty if there was none yet.
    ///
    /// # Errors
    /// The module's error.
    pub fn working_set(&self) -> Result<Vec<Extent>, CallError> {
        let set = ioctl::memory_list_set(self.fd.as_fd())?;
        let extents = set.iter().map(|extent| Extent {
            offset: extent.start,
            size: extent.size,
        });
        Ok(extents.collect())
    }

    /// Gives it one that was kept elsewhere (`INSULA_MEMORY_GIVE_SET`).
    ///
    /// # Errors
    /// The module's error; `EINVAL` when there are other extents than of whole pages, within the object,
    /// in ascending order, or too many pages; `EEXIST` when it has a set.
    pub fn give_working_set(&self, set: &[Extent]) -> Result<(), CallError> {
        let extents = set.iter().map(|extent| abi::Chunk {
            start: extent.offset,
            size: extent.size,
        });
        ioctl::memory_give_set(self.fd.as_fd(), &extents.collect::<Vec<_>>())
    }

    /// Maps the whole object.
    ///
    /// # Errors
    /// The module's or the kernel's error.
    pub fn map(&self) -> Result<Mapping, DriverError> {
        Mapping::new(self.fd.as_fd(), self.chunks()?, Access::Write)
    }

    /// Maps the whole object, for reading: pages that a copy of a node shares stay shared.
    ///
    /// # Errors
    /// The module's or the kernel's error.
    pub fn map_for_reading(&self) -> Result<Mapping, DriverError> {
        Mapping::new(self.fd.as_fd(), self.chunks()?, Access::Read)
    }
}

impl AsFd for Memory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
