//! The format of an image in a file: versioned, checksummed, without pages of zeros.
//!
//! Numbers are little-endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | `INSULAIM` |
//! | 8 | 4 | version, 2 |
//! | 12 | 4 | size of the description |
//! | 16 | 8 | size of the image's memory |
//! | 24 | 8 | number of extents |
//! | 32 | 8 | number of extents of its working set |
//! | 40 | 32 | SHA-256 of all other bytes of the file, in their order |
//! | 72 | | the description |
//! | | 16 each | the extents: offset in the image's memory, and size. Whole pages, in ascending order |
//! | | 16 each | the working set, likewise: what copies write while they start |
//! | | | the extents' bytes |
//!
//! A file's sizes are compared with its length before anything is allocated for them.

use std::io::{self, Read, Seek, SeekFrom, Write};

use insula_abi::{DESCRIPTION_MAX, WORKING_SET_MAX};
use insula_driver::{Extent, Mapping, OutOfRange};
use sha2::{Digest, Sha256};

const MAGIC: [u8; 8] = *b"INSULAIM";
const VERSION: u32 = 2;
/// Bytes of the header that the digest covers.
const FACTS: usize = 40;
const DIGEST: usize = 32;
const HEADER: u64 = (FACTS + DIGEST) as u64;
/// Bytes of an extent in the file.
const ENTRY: u64 = 16;
const PAGE: u64 = 4096;
/// Bytes that are copied at a time: whole pages.
const BLOCK: usize = 64 * PAGE as usize;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// It is something else.
    #[error("it is not an image of Insula")]
    NoImage,
    /// Its version is another.
    #[error("its version is {0}, not {VERSION}")]
    Version(u32),
    /// It is shorter or longer than it says.
    #[error("it was truncated, or its sizes are damaged")]
    Size,
    /// Its content is not what was written.
    #[error("its checksum is wrong")]
    Checksum,
    /// Its description cannot be read, or does not fit its memory.
    #[error("its description is not valid")]
    Description,
    /// Its memory could not be written.
    #[error(transparent)]
    Memory(#[from] OutOfRange),
}

/// An image to be written.
pub(crate) struct Saved<'a, C> {
    /// Its description.
    pub(crate) description: &'a [u8],
    /// Its memory.
    pub(crate) content: &'a C,
    /// How many of the memory's first bytes are the image's: whole pages.
    pub(crate) size: u64,
    /// Its working set.
    pub(crate) working_set: &'a [Extent],
}

/// The content of an image's memory.
pub(crate) trait Content {
    /// Copies bytes out.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange>;
}

impl Content for Mapping {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        Mapping::read(self, offset, into)
    }
}

/// Writes an image.
pub(crate) fn write<C: Content>(mut to: impl Write + Seek, image: &Saved<'_, C>) -> io::Result<()> {
    let extents = extents(image.content, image.size)?;
    let facts = facts(
        image.description.len(),
        image.size,
        extents.len(),
        image.working_set.len(),
    );
    let mut digest = Sha256::new();
    digest.update(facts);
    to.write_all(&facts)?;
    to.write_all(&[0; DIGEST])?;
    let mut put = |bytes: &[u8]| {
        digest.update(bytes);
        to.write_all(bytes)
    };
    put(image.description)?;
    for extent in extents.iter().chain(image.working_set) {
        put(&extent.offset.to_le_bytes())?;
        put(&extent.size.to_le_bytes())?;
    }
    for extent in &extents {
        read_blocks(image.content, *extent, |_, bytes| put(bytes))?;
    }
    let digest = digest.finalize();
    to.seek(SeekFrom::Start(FACTS as u64))?;
    to.write_all(&digest)
}

fn facts(description: usize, size: u64, extents: usize, working_set: usize) -> [u8; FACTS] {
    let mut facts = [0; FACTS];
    let mut put = |at: usize, bytes: &[u8]| facts[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC);
    put(8, &VERSION.to_le_bytes());
    // At most DESCRIPTION_MAX and a few more: hence no truncation.
    put(12, &(description as u32).to_le_bytes());
    put(16, &size.to_le_bytes());
    put(24, &(extents as u64).to_le_bytes());
    put(32, &(working_set as u64).to_le_bytes());
    facts
}

/// The extents of pages that are not zero.
fn extents(content: &impl Content, size: u64) -> io::Result<Vec<Extent>> {
    let mut extents: Vec<Extent> = Vec::new();
    read_blocks(content, Extent { offset: 0, size }, |start, bytes| {
        for (page, offset) in bytes
            .chunks(PAGE as usize)
            .zip((start..).step_by(PAGE as usize))
        {
            if page.iter().all(|&byte| byte == 0) {
                continue;
            }
            match extents
                .last_mut()
                .filter(|last| last.offset + last.size == offset)
            {
                Some(last) => last.size += PAGE,
                None => extents.push(Extent { offset, size: PAGE }),
            }
        }
        Ok(())
    })?;
    Ok(extents)
}

/// Passes the bytes of an extent on, block by block, each with its offset.
fn read_blocks(
    content: &impl Content,
    extent: Extent,
    mut pass: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    let end = extent.offset + extent.size;
    for offset in (extent.offset..end).step_by(BLOCK) {
        let bytes = &mut block[..(end - offset).min(BLOCK as u64) as usize];
        content.read(offset, bytes).map_err(io::Error::other)?;
        pass(offset, bytes)?;
    }
    Ok(())
}

/// An image in a file, read up to its content.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    /// Its description.
    pub(crate) description: Vec<u8>,
    /// Size of its memory in bytes.
    pub(crate) size: u64,
    /// Its working set.
    pub(crate) working_set: Vec<Extent>,
    extents: Vec<Extent>,
    source: R,
    /// Of what was read so far.
    digest: Sha256,
    expected: [u8; DIGEST],
}

impl<R: Read> Reader<R> {
    /// Reads all but the content, of a file of `length` bytes. The checksum was not compared yet.
    pub(crate) fn open(mut source: R, length: u64) -> Result<Self, FileError> {
        let mut facts = [0; FACTS];
        read_header(&mut source, &mut facts)?;
        if facts[..8] != MAGIC {
            return Err(FileError::NoImage);
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| facts[at + byte]));
        let version = word(8) as u32;
        if version != VERSION {
            return Err(FileError::Version(version));
        }
        let (description, size, counts) = (word(8) >> 32, word(16), [word(24), word(32)]);
        let mut expected = [0; DIGEST];
        read_header(&mut source, &mut expected)?;
        let content = content_size(length, description, counts).ok_or(FileError::Size)?;
        let mut reader = Self {
            description: vec![0; description as usize],
            size,
            working_set: Vec::new(),
            extents: Vec::new(),
            source,
            digest: Sha256::new_with_prefix(facts),
            expected,
        };
        reader.source.read_exact(&mut reader.description)?;
        reader.digest.update(&reader.description);
        let (extents, all) = reader.read_extents(counts[0])?;
        let (working_set, written) = reader.read_extents(counts[1])?;
        if all != content || written > WORKING_SET_MAX * PAGE {
            return Err(FileError::Size);
        }
        (reader.extents, reader.working_set) = (extents, working_set);
        Ok(reader)
    }

    /// Reads extents. Returns them, and their bytes.
    fn read_extents(&mut self, count: u64) -> Result<(Vec<Extent>, u64), FileError> {
        let (mut extents, mut end, mut all) = (Vec::new(), 0, 0);
        for _ in 0..count {
            let mut entry = [0; ENTRY as usize];
            self.source.read_exact(&mut entry)?;
            self.digest.update(entry);
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| entry[at + byte]));
            let extent = Extent {
                offset: word(0),
                size: word(8),
            };
            end = end_of(extent, end, self.size).ok_or(FileError::Size)?;
            // At most the sum of disjoint extents, the memory's size.
            all += extent.size;
            extents.push(extent);
        }
        Ok((extents, all))
    }

    /// Passes the content on, with offsets, and then compares the checksum: on an error, what was
    /// passed on is worth nothing.
    pub(crate) fn read_content(
        mut self,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), OutOfRange>,
    ) -> Result<(), FileError> {
        let mut block = vec![0; BLOCK];
        for Extent { offset, size } in self.extents {
            for at in (offset..offset + size).step_by(BLOCK) {
                let bytes = &mut block[..(offset + size - at).min(BLOCK as u64) as usize];
                self.source.read_exact(bytes)?;
                self.digest.update(&*bytes);
                write(at, bytes)?;
            }
        }
        match self.digest.finalize()[..] == self.expected {
            true => Ok(()),
            false => Err(FileError::Checksum),
        }
    }
}

/// A file that is shorter than a header is no image.
fn read_header(mut source: impl Read, into: &mut [u8]) -> Result<(), FileError> {
    source.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => FileError::NoImage,
        _ => error.into(),
    })
}

/// Bytes that a file of `length` bytes has for its extents' content.
fn content_size(length: u64, description: u64, counts: [u64; 2]) -> Option<u64> {
    if description > DESCRIPTION_MAX as u64 {
        return None;
    }
    let extents = counts[0].checked_add(counts[1])?.checked_mul(ENTRY)?;
    length
        .checked_sub(HEADER)?
        .checked_sub(description)?
        .checked_sub(extents)
}

/// End of an extent that follows another one's, in memory of that size.
fn end_of(extent: Extent, previous: u64, size: u64) -> Option<u64> {
    let end = extent.offset.checked_add(extent.size)?;
    let whole = extent.offset.is_multiple_of(PAGE) && extent.size.is_multiple_of(PAGE);
    (whole && extent.size > 0 && extent.offset >= previous && end <= size).then_some(end)
}

#[cfg(test)]
mod tests;
