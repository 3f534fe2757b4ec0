//! A memory object mapped into this process, as bytes that are only ever copied.
//!
//! A node's kernel may change its memory at any moment, so no reference to it is ever made: reads
//! are volatile, writes go through raw pointers, and both copy. There are two kinds of addresses:
//! the *offset* in the object, and the *physical* address that a node and its tables use.

#![allow(
    unsafe_code,
    reason = "shared memory is reached through raw pointers only"
)]

mod flush;
mod pair;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use insula_abi::Chunk;
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::{CallError, DriverError};

/// An access that is not entirely within the mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{size} bytes at {at:#x} do not lie in the mapped memory")]
pub struct OutOfRange {
    /// Offset or physical address asked for.
    pub at: u64,
    /// Bytes asked for.
    pub size: u64,
}

/// Contiguous bytes of a memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Number of bytes.
    pub size: u64,
}

/// How a memory object is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It is only read.
    Read,
    /// It is read and written.
    Write,
}

/// A whole memory object, mapped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    size: usize,
    access: Access,
    /// Each chunk with the offset of its first byte.
    chunks: Vec<(u64, Chunk)>,
}

// SAFETY: 1. The mapping belongs to this value alone and is not tied to a thread. 2. Through
// `&self` it is only read, volatilely, and never exposed as a reference. 3. Writes need `&mut
// self`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a whole memory object.
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        chunks: Vec<Chunk>,
        access: Access,
    ) -> Result<Self, DriverError> {
        Self::from_offset(fd, 0, chunks, access)
    }

    /// Maps a part of a file, from an offset on: these chunks.
    pub(super) fn from_offset(
        fd: BorrowedFd<'_>,
        offset: u64,
        chunks: Vec<Chunk>,
        access: Access,
    ) -> Result<Self, DriverError> {
        let total = chunks
            .iter()
            .fold(0_u64, |sum, chunk| sum.saturating_add(chunk.size));
        let length = usize::try_from(total).ok().and_then(NonZeroUsize::new);
        let length = length.ok_or(DriverError::Size(total))?;
        let offset = i64::try_from(offset).map_err(|_| DriverError::Size(offset))?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new shared mapping at an address of the kernel's choice; it replaces nothing,
        // and no reference to it will ever be made.
        let base = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, offset) };
        let base = base.map_err(CallError::of("mmap"))?.cast();
        let offsets = chunks.iter().scan(0, |offset, chunk| {
            let this = *offset;
            *offset += chunk.size;
            Some(this)
        });
        let chunks = offsets.zip(chunks.iter().copied()).collect();
        Ok(Self {
            base,
            size: length.get(),
            access,
            chunks,
        })
    }

    /// Size of the object in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size as u64
    }

    /// The physical chunks, in order of offset.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + '_ {
        self.chunks.iter().map(|&(_, chunk)| chunk)
    }

    /// The offset of `size` bytes at a physical address; they must be within one chunk, as a page
    /// is.
    ///
    /// # Errors
    /// [`OutOfRange`] when they do not.
    pub fn offset_of(&self, address: u64, size: u64) -> Result<u64, OutOfRange> {
        match self.extent_at(address) {
            Some(extent) if size <= extent.size => Ok(extent.offset),
            _ => Err(OutOfRange { at: address, size }),
        }
    }

    /// The extents of the object that hold `size` bytes at a physical address, in order of address.
    /// There are several where chunks touch: neighbours in memory may have been allocated at
    /// different times.
    ///
    /// # Errors
    /// [`OutOfRange`] when not all of them belong to the object.
    pub fn extents(&self, address: u64, size: u64) -> Result<Vec<Extent>, OutOfRange> {
        let mut extents = Vec::new();
        let mut done = 0;
        while done < size {
            let next = address.checked_add(done);
            let found = next.and_then(|address| self.extent_at(address));
            let mut extent = found.ok_or(OutOfRange { at: address, size })?;
            extent.size = extent.size.min(size - done);
            done += extent.size;
            extents.push(extent);
        }
        Ok(extents)
    }

    /// The extent from a physical address to the end of its chunk.
    fn extent_at(&self, address: u64) -> Option<Extent> {
        self.chunks.iter().find_map(|(offset, chunk)| {
            let skip = address.checked_sub(chunk.start)?;
            let size = chunk.size.checked_sub(skip).filter(|&size| size > 0)?;
            Some(Extent {
                offset: offset + skip,
                size,
            })
        })
    }

    /// Copies bytes in, to a physical address.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in the object; nothing was written.
    pub fn write_at(&mut self, address: u64, mut bytes: &[u8]) -> Result<(), OutOfRange> {
        for extent in self.extents(address, bytes.len() as u64)? {
            // At most the length, hence no truncation.
            let (now, rest) = bytes.split_at(extent.size as usize);
            self.write(extent.offset, now)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Copies bytes out, from an offset. What a peer writes meanwhile may be torn.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in the object.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let from = self.pointer(offset, into.len())?;
        let aligned = from.align_offset(size_of::<u64>()).min(into.len());
        let (head, rest) = into.split_at_mut(aligned);
        let (words, tail) = rest.as_chunks_mut::<8>();
        let words_size = words.len() * 8;
        // SAFETY: all three parts are within `into.len()` bytes from `from`, which `pointer` has
        // checked to be in the mapping; the middle one starts at a multiple of 8.
        unsafe {
            read_bytes(from, head);
            for (index, word) in words.iter_mut().enumerate() {
                let value = from.add(aligned).cast::<u64>().add(index).read_volatile();
                *word = value.to_ne_bytes();
            }
            read_bytes(from.add(aligned + words_size), tail);
        }
        Ok(())
    }

    /// The word at an offset, a multiple of 8, as an atomic: for words shared with peers.
    ///
    /// # Errors
    /// [`OutOfRange`] when it is not in the object, or the offset is not a multiple of 8.
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfRange> {
        let at = self.writable(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !at.is_aligned() {
            let size = size_of::<u64>() as u64;
            return Err(OutOfRange { at: offset, size });
        }
        // SAFETY: it is in the mapping (`pointer`), which lives as long as `self`; a reference to
        // an atomic is valid though others change it.
        Ok(unsafe { &*at })
    }

    /// Copies bytes in, to an offset.
    ///
    /// # Errors
    /// [`OutOfRange`] when they are not all in the object, or it is mapped for reading; nothing was
    /// written.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let to = self.writable(offset, bytes.len())?;
        // SAFETY: 1. `to` is valid for `bytes.len()` bytes (`pointer`). 2. `bytes` is a Rust slice
        // and so cannot lie in the mapping, of which there are no references.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Reads a part of a file directly into the object, without a copy in this process.
    fn read_file(&mut self, offset: u64, file: &File, at: u64, size: u64) -> io::Result<()> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let size = usize::try_from(size).map_err(io::Error::other)?;
        let to = self.writable(offset, size).map_err(invalid)?;
        let mut done = 0;
        while done < size {
            let position = i64::try_from(at + done as u64).map_err(io::Error::other)?;
            // SAFETY: `to + done` is valid for `size - done` bytes (`pointer`); the kernel writes
            // at most these.
            let count = unsafe {
                libc::pread(file.as_raw_fd(), to.add(done).cast(), size - done, position)
            };
            match Errno::result(count) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count.unsigned_abs(),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Reads the first `size` bytes of a file directly to a physical address.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file ends early, `InvalidInput` when the bytes are not all in the
    /// object, else the file's error.
    pub fn read_file_at(&mut self, address: u64, file: &File, size: u64) -> io::Result<()> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let mut at = 0;
        for Extent { offset, size } in self.extents(address, size).map_err(invalid)? {
            self.read_file(offset, file, at, size)?;
            at += size;
        }
        Ok(())
    }

    /// The same, to be written.
    fn writable(&self, offset: u64, size: usize) -> Result<*mut u8, OutOfRange> {
        match self.access {
            Access::Write => self.pointer(offset, size),
            Access::Read => Err(OutOfRange {
                at: offset,
                size: size as u64,
            }),
        }
    }

    /// The pointer to `size` bytes at an offset, if they are in the mapping.
    fn pointer(&self, offset: u64, size: usize) -> Result<*mut u8, OutOfRange> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if start > self.size || size > self.size - start {
            return Err(OutOfRange {
                at: offset,
                size: size as u64,
            });
        }
        // SAFETY: `start` is at most the mapping's size, so the result is in it or just past it.
        Ok(unsafe { self.base.as_ptr().add(start) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`, no pointer to it outlives `self`. Unmapping a
        // whole mapping does not fail.
        let _ = unsafe { munmap(self.base.cast(), self.size) };
    }
}

impl kimage::PhysicalMemory for Mapping {
    fn ranges(&self) -> Vec<Range<u64>> {
        self.chunks()
            .map(|chunk| chunk.start..chunk.start + chunk.size)
            .collect()
    }

    fn read(&self, address: u64, mut into: &mut [u8]) -> Result<(), kimage::ReadError> {
        let size = into.len();
        let failed = |_| kimage::ReadError { address, size };
        for extent in self.extents(address, size as u64).map_err(failed)? {
            let (now, rest) = into.split_at_mut(extent.size as usize);
            Mapping::read(self, extent.offset, now).map_err(failed)?;
            into = rest;
        }
        Ok(())
    }
}

/// Reads single bytes.
///
/// # Safety
/// `from` is valid for `into.len()` bytes.
unsafe fn read_bytes(from: *const u8, into: &mut [u8]) {
    for (index, byte) in into.iter_mut().enumerate() {
        // SAFETY: `index` is below `into.len()`.
        *byte = unsafe { from.add(index).read_volatile() };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;

    const CHUNKS: [Chunk; 2] = [
        Chunk {
            start: 0x10000,
            size: 0x4000,
        },
        Chunk {
            start: 0x4000_0000,
            size: 0xc000,
        },
    ];

    /// A mapping of an ordinary file: the same mmap as of the device.
    pub(super) fn mapping() -> Mapping {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x10000).unwrap();
        Mapping::new(file.as_fd(), CHUNKS.to_vec(), Access::Write).unwrap()
    }

    fn pattern(size: usize) -> Vec<u8> {
        (0..size)
            .map(|index| (index * 7 + index / 251) as u8)
            .collect()
    }

    #[test]
    fn physical_addresses_become_offsets() {
        let memory = mapping();
        assert_eq!(memory.offset_of(0x10000, 0x4000), Ok(0));
        assert_eq!(memory.offset_of(0x4000_0010, 8), Ok(0x4010));
        assert!(memory.offset_of(0x10000, 0x4001).is_err());
        assert!(memory.offset_of(0xffff, 1).is_err());
        assert!(memory.offset_of(u64::MAX, u64::MAX).is_err());
    }

    /// Chunks that touch, the higher one allocated first.
    fn touching() -> Mapping {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x3000).unwrap();
        let chunks = [(0x5000, 0x1000), (0x3000, 0x2000)];
        let chunks = chunks.map(|(start, size)| Chunk { start, size });
        Mapping::new(file.as_fd(), chunks.to_vec(), Access::Write).unwrap()
    }

    #[test]
    fn a_range_across_chunks_has_several_extents() {
        let memory = touching();
        let extents = |address, size| {
            let extents = memory.extents(address, size)?;
            Ok(extents.iter().map(|one| (one.offset, one.size)).collect())
        };
        assert_eq!(
            extents(0x4f00, 0x300),
            Ok(vec![(0x2f00, 0x100), (0, 0x200)])
        );
        assert_eq!(extents(0x3000, 0x2000), Ok(vec![(0x1000, 0x2000)]));
        assert_eq!(extents(0x3000, 0), Ok(vec![]));
        let outside = |at, size| extents(at, size) == Err::<Vec<_>, _>(OutOfRange { at, size });
        assert!(outside(0x5fff, 2) && outside(0x2fff, 2) && outside(u64::MAX, 2));
    }

    #[test]
    fn a_range_across_chunks_is_written_and_read_as_one() {
        let mut memory = touching();
        memory.write_at(0x4800, &pattern(0x1000)).unwrap();
        let mut back = vec![0; 0x1000];
        kimage::PhysicalMemory::read(&memory, 0x4800, &mut back).unwrap();
        assert_eq!(back, pattern(0x1000));
        memory.read(0, &mut back[..0x800]).unwrap();
        assert_eq!(back[..0x800], pattern(0x1000)[0x800..], "the chunk behind");
        assert!(memory.write_at(0x5800, &pattern(0x801)).is_err());
    }

    #[test]
    fn what_is_mapped_for_reading_is_not_written() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&pattern(0x10000)).unwrap();
        let mut memory = Mapping::new(file.as_fd(), CHUNKS.to_vec(), Access::Read).unwrap();
        let mut back = [0; 4];
        memory.read(0x100, &mut back).unwrap();
        assert_eq!(back, pattern(0x104)[0x100..]);
        assert!(memory.write(0, &[1]).is_err() && memory.write_at(0x10000, &[1]).is_err());
        assert!(memory.word(0).is_err(), "it could be written");
    }

    #[test]
    fn files_are_read_in_place() {
        let mut memory = mapping();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&pattern(5000)).unwrap();
        file.rewind().unwrap();
        memory.read_file(0x123, &file, 1000, 4000).unwrap();
        let mut back = vec![0; 4000];
        memory.read(0x123, &mut back).unwrap();
        assert_eq!(back, pattern(5000)[1000..]);
        let early = memory.read_file(0, &file, 1000, 4001).unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::UnexpectedEof);
        let outside = memory.read_file(0xffff, &file, 0, 2).unwrap_err();
        assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(offset in 0_u64..0x10100, size in 0_usize..600) {
            let mut memory = mapping();
            let bytes = pattern(size);
            let fits = offset + size as u64 <= 0x10000;
            prop_assert_eq!(memory.write(offset, &bytes).is_ok(), fits);
            let mut back = vec![0; size];
            prop_assert_eq!(memory.read(offset, &mut back).is_ok(), fits);
            prop_assert!(!fits || back == bytes);
        }
    }
}
