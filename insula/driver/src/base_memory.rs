//! The base's own memory, to be read.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use insula_abi::Chunk;
use kimage::{PhysicalMemory, ReadError};

use super::mapping::Access;
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
