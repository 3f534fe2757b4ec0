//! The base's own memory, to be read, and memory that it does not use, where something can be kept.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use insula_abi::Chunk;
use kimage::{PhysicalMemory, ReadError};

use super::mapping::{Access, OutOfRange};
use super::{DriverError, Mapping};

/// The base's memory, which is RAM in ranges of physical addresses.
#[derive(Debug)]
pub struct BaseMemory {
    fd: OwnedFd,
}

impl BaseMemory {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Maps ranges of RAM, for reading.
    ///
    /// # Errors
    /// The module's or the kernel's error; `EINVAL` when a range is not RAM, or not of whole pages.
    pub fn map(&self, ranges: &[Range<u64>]) -> Result<BaseMapping, DriverError> {
        let map = |range: &Range<u64>| {
            let chunk = Chunk {
                start: range.start,
                size: range.end.saturating_sub(range.start),
            };
            Mapping::from_offset(self.fd.as_fd(), range.start, vec![chunk], Access::Read)
        };
        Ok(BaseMapping {
            ranges: ranges.iter().map(map).collect::<Result<_, _>>()?,
        })
    }

    /// Maps a range of reserved memory (`memmap=SIZE$START`), for reading and writing.
    ///
    /// # Errors
    /// The module's or the kernel's error; `EACCES` when it is not reserved, `EPERM` when lockdown refuses
    /// it.
    pub fn map_reserved(&self, range: &Range<u64>) -> Result<ReservedMapping, DriverError> {
        let chunk = Chunk {
            start: range.start,
            size: range.end.saturating_sub(range.start),
        };
        let fd = self.fd.as_fd();
        let mapping = Mapping::from_offset(fd, range.start, vec![chunk], Access::Write)?;
        Ok(ReservedMapping { mapping })
    }
}

/// Memory that the base does not use, mapped to be written: what is in it survives a warm reset.
#[derive(Debug)]
pub struct ReservedMapping {
    mapping: Mapping,
}

impl ReservedMapping {
    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.mapping.size()
    }

    /// Copies bytes out, from an offset.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in it.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.mapping.read(offset, into)
    }

    /// Copies bytes in, to an offset, and from the caches to the memory: a reset may drop what is only in
    /// caches.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in it; nothing was written.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.mapping.write(offset, bytes)?;
        self.mapping.flush(offset, bytes.len())
    }
}

/// Ranges of the base's memory, mapped for reading.
#[derive(Debug)]
pub struct BaseMapping {
    ranges: Vec<Mapping>,
}

impl PhysicalMemory for BaseMapping {
    fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.iter().flat_map(Mapping::ranges).collect()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let size = into.len();
        let found = self.ranges.iter().find_map(|range| {
            let offset = range.offset_of(address, size as u64).ok()?;
            Some((range, offset))
        });
        let (range, offset) = found.ok_or(ReadError { address, size })?;
        Mapping::read(range, offset, into).map_err(|_| ReadError { address, size })
    }
}
