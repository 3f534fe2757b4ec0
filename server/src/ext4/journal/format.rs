//! Blocks of the journal (Documentation/filesystems/ext4/journal.rst of Linux). All numbers are
//! big-endian.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ext4::checksum::crc32c;
use crate::ext4::error::{Error, Result};

const MAGIC: u32 = 0xc03b_3998;
/// Bytes of the identity that follows the first tag of a descriptor block.
const UUID: usize = 16;
/// Bytes of the checksum at the end of descriptor and revocation blocks.
const TAIL: usize = 4;
const CRC32C: u8 = 4;

/// Types of blocks.
pub(super) mod kind {
    pub(in crate::ext4::journal) const DESCRIPTOR: u32 = 1;
    pub(in crate::ext4::journal) const COMMIT: u32 = 2;
    pub(in crate::ext4::journal) const SUPERBLOCK: u32 = 4;
    pub(in crate::ext4::journal) const REVOCATION: u32 = 5;
}

/// Incompatible features.
mod feature {
    pub(super) const REVOKE: u32 = 0x1;
    pub(super) const WIDE: u32 = 0x2;
    /// Commits may be written together with what they commit.
    pub(super) const ASYNC: u32 = 0x4;
    pub(super) const CSUM_V2: u32 = 0x8;
    pub(super) const CSUM_V3: u32 = 0x10;
    pub(super) const FAST_COMMIT: u32 = 0x20;
}

/// Flags of a tag.
mod flag {
    /// The block begins with zeros in place of the magic number.
    pub(super) const ESCAPED: u32 = 1;
    pub(super) const SAME_UUID: u32 = 2;
    pub(super) const LAST: u32 = 8;
}

/// What each block of the journal's own begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Header {
    magic: U32,
    kind: U32,
    sequence: U32,
}

const HEADER: usize = size_of::<Header>();

impl Header {
    fn new(kind: u32, sequence: u32) -> Self {
        Self {
            magic: MAGIC.into(),
            kind: kind.into(),
            sequence: sequence.into(),
        }
    }

    /// Reads a block's type, if it is one of a transaction.
    pub(super) fn kind(bytes: &[u8], sequence: u32) -> Option<u32> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        let is_of = header.magic.get() == MAGIC && header.sequence.get() == sequence;
        is_of.then(|| header.kind.get())
    }
}

/// The superblock of the journal.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Superblock {
    header: Header,
    block_size: U32,
    pub(super) length: U32,
    pub(super) first: U32,
    pub(super) sequence: U32,
    /// 0 if the journal is empty.
    pub(super) start: U32,
    errno: U32,
    compat: U32,
    incompat: U32,
    read_only: U32,
    uuid: [u8; UUID],
    users: U32,
    dynamic: U32,
    transaction_max: U32,
    data_max: U32,
    checksum_type: u8,
    padding: [u8; 3],
    fast_blocks: U32,
    head: U32,
    unused: [U32; 40],
    checksum: U32,
    rest: [u8; 0x300],
}

const SUPERBLOCK: usize = size_of::<Superblock>();
const _: () = assert!(SUPERBLOCK == 1024);

impl Superblock {
    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Unsupported`], [`Error::Damaged`].
    pub(super) fn parse(bytes: &[u8], block_size: usize, blocks: usize) -> Result<Self> {
        let wrong = Error::Damaged("superblock of the journal");
        let (superblock, _) = Self::read_from_prefix(bytes).map_err(|_| wrong.clone())?;
        let header = superblock.header;
        if header.magic.get() != MAGIC || header.kind.get() != kind::SUPERBLOCK {
            return Err(wrong);
        }
        superblock.check_features()?;
        let (first, length) = (superblock.first.get(), superblock.length.get());
        /// As of Linux, which makes no smaller one.
        const LENGTH_MIN: u32 = 1024;
        let is_good = superblock.block_size.get() as usize == block_size
            && (LENGTH_MIN..=blocks as u32).contains(&length)
            && (1..=length - LENGTH_MIN / 2).contains(&first)
            && (superblock.start.get() == 0 || (first..length).contains(&superblock.start.get()))
            && superblock.errno.get() == 0;
        let has_checksum = superblock.format().has_checksums;
        match is_good && (!has_checksum || superblock.checksum() == superblock.checksum.get()) {
            true => Ok(superblock),
            false => Err(wrong),
        }
    }

    fn check_features(&self) -> Result<()> {
        let known = feature::REVOKE | feature::WIDE | feature::ASYNC | feature::CSUM_V3;
        let name = match self.incompat.get() & !known {
            0 if self.read_only.get() == 0 => return Ok(()),
            0 => "ro_compat features".into(),
            feature::CSUM_V2 => "checksum_v2".into(),
            feature::FAST_COMMIT => "fast_commit".into(),
            other => format!("features {other:#x}"),
        };
        Err(Error::Unsupported(format!("{name} of the journal")))
    }

    pub(super) fn format(&self) -> Format {
        let incompat = self.incompat.get();
        Format {
            is_wide: incompat & feature::WIDE != 0,
            has_checksums: incompat & feature::CSUM_V3 != 0,
            uuid: self.uuid,
        }
    }

    /// Has an empty journal have the format that a file system needs.
    pub(super) fn set_format(&mut self, is_wide: bool, has_checksums: bool) {
        let wide = if is_wide { feature::WIDE } else { 0 };
        let checksums = if has_checksums { feature::CSUM_V3 } else { 0 };
        self.incompat = (feature::REVOKE | wide | checksums).into();
        self.compat = 0.into();
        self.checksum_type = if has_checksums { CRC32C } else { 0 };
    }

    /// Says where the journal begins; nowhere (0) if it is empty.
    pub(super) fn set_start(&mut self, start: u32, sequence: u32) {
        self.start = start.into();
        self.sequence = sequence.into();
        self.head = 0.into();
        if self.format().has_checksums {
            self.checksum = self.checksum().into();
        }
    }

    fn checksum(&self) -> u32 {
        let of = Self {
            checksum: 0.into(),
            ..self.clone()
        };
        crc32c(!0, of.as_bytes())
    }
}

/// A block that a transaction has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// Where it belongs.
    pub(super) block: u64,
    pub(super) is_escaped: bool,
    pub(super) checksum: u32,
}

/// How blocks of the journal are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Format {
    is_wide: bool,
    has_checksums: bool,
    uuid: [u8; UUID],
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

impl Format {
    fn tail(self) -> usize {
        if self.has_checksums { TAIL } else { 0 }
    }

    fn tag_size(self) -> usize {
        match (self.has_checksums, self.is_wide) {
            (true, _) => 16,
            (false, true) => 12,
            (false, false) => 8,
        }
    }

    /// Tags that fit into a descriptor block.
    pub(super) fn tags(self, block_size: usize) -> usize {
        (block_size - HEADER - UUID - self.tail()) / self.tag_size()
    }

    fn number_size(self) -> usize {
        if self.is_wide { 8 } else { 4 }
    }

    /// Block numbers that fit into a revocation block.
    pub(super) fn revocations(self, block_size: usize) -> usize {
        (block_size - HEADER - 4 - self.tail()) / self.number_size()
    }

    fn seed(self) -> u32 {
        crc32c(!0, &self.uuid)
    }

    /// Returns the checksum of a changed block.
    pub(super) fn block_checksum(self, sequence: u32, bytes: &[u8]) -> u32 {
        crc32c(crc32c(self.seed(), &sequence.to_be_bytes()), bytes)
    }

    /// Whether a changed block is as it was written.
    pub(super) fn is_intact(self, sequence: u32, tag: &Tag, bytes: &[u8]) -> bool {
        !self.has_checksums || self.block_checksum(sequence, bytes) == tag.checksum
    }

    /// Returns a descriptor block.
    pub(super) fn descriptor(self, sequence: u32, tags: &[Tag], block_size: usize) -> Vec<u8> {
        let mut bytes = Header::new(kind::DESCRIPTOR, sequence).as_bytes().to_vec();
        bytes.resize(block_size, 0);
        let mut at = HEADER;
        for (index, tag) in tags.iter().enumerate() {
            let mut flags = if tag.is_escaped { flag::ESCAPED } else { 0 };
            flags |= if index > 0 { flag::SAME_UUID } else { 0 };
            flags |= if index + 1 == tags.len() {
                flag::LAST
            } else {
                0
            };
            put(&mut bytes, at, tag.block as u32);
            // Without checksums, they are the second half of a word.
            put(&mut bytes, at + 4, flags);
            if self.is_wide {
                put(&mut bytes, at + 8, (tag.block >> 32) as u32);
            }
            if self.has_checksums {
                put(&mut bytes, at + 12, tag.checksum);
            }
            at += self.tag_size();
            if index == 0 {
                bytes[at..at + UUID].copy_from_slice(&self.uuid);
                at += UUID;
            }
        }
        self.seal(&mut bytes);
        bytes
    }

    /// Reads a descriptor block's tags, if it is intact.
    pub(super) fn tags_of(self, bytes: &[u8]) -> Option<Vec<Tag>> {
        if !self.is_sealed(bytes) {
            return None;
        }
        let end = bytes.len() - self.tail();
        let (mut tags, mut at) = (Vec::new(), HEADER);
        while at + self.tag_size() <= end {
            let low = word(bytes, at)?;
            let flags = word(bytes, at + 4)? & if self.has_checksums { !0 } else { 0xffff };
            let high = if self.is_wide {
                word(bytes, at + 8)?
            } else {
                0
            };
            let checksum = if self.has_checksums {
                word(bytes, at + 12)?
            } else {
                0
            };
            tags.push(Tag {
                block: u64::from(low) | u64::from(high) << 32,
                is_escaped: flags & flag::ESCAPED != 0,
                checksum,
            });
            at += self.tag_size();
            at += if flags & flag::SAME_UUID == 0 {
                UUID
            } else {
                0
            };
            if flags & flag::LAST != 0 {
                break;
            }
        }
        Some(tags)
    }

    /// Returns a revocation block.
    pub(super) fn revocation(self, sequence: u32, blocks: &[u64], block_size: usize) -> Vec<u8> {
        let mut bytes = Header::new(kind::REVOCATION, sequence).as_bytes().to_vec();
        let used = HEADER + 4 + blocks.len() * self.number_size();
        bytes.extend((used as u32).to_be_bytes());
        for block in blocks {
            match self.is_wide {
                true => bytes.extend(U64::new(*block).as_bytes()),
                false => bytes.extend((*block as u32).to_be_bytes()),
            }
        }
        bytes.resize(block_size, 0);
        self.seal(&mut bytes);
        bytes
    }

    /// Reads a revocation block, if it is intact.
    pub(super) fn revocations_of(self, bytes: &[u8]) -> Option<Vec<u64>> {
        if !self.is_sealed(bytes) {
            return None;
        }
        let used = word(bytes, HEADER)? as usize;
        let numbers = bytes.get(HEADER + 4..used.min(bytes.len() - self.tail()))?;
        let number = |of: &[u8]| of.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        Some(
            numbers
                .chunks_exact(self.number_size())
                .map(number)
                .collect(),
        )
    }

    /// Returns a commit block.
    pub(super) fn commit(self, sequence: u32, seconds: u64, block_size: usize) -> Vec<u8> {
        let mut bytes = Header::new(kind::COMMIT, sequence).as_bytes().to_vec();
        bytes.resize(block_size, 0);
        bytes[COMMIT_TIME..COMMIT_TIME + 8].copy_from_slice(&seconds.to_be_bytes());
        if self.has_checksums {
            let checksum = crc32c(self.seed(), &bytes);
            put(&mut bytes, COMMIT_CHECKSUM, checksum);
        }
        bytes
    }

    /// Whether a commit block is intact.
    pub(super) fn is_commit(self, bytes: &[u8]) -> bool {
        let mut without = bytes.to_vec();
        put(&mut without, COMMIT_CHECKSUM, 0);
        let checksum = crc32c(self.seed(), &without);
        !self.has_checksums || word(bytes, COMMIT_CHECKSUM) == Some(checksum)
    }

    /// Writes the checksum at the end of a block.
    fn seal(self, bytes: &mut [u8]) {
        if self.has_checksums {
            let checksum = crc32c(self.seed(), bytes);
            let at = bytes.len() - TAIL;
            put(bytes, at, checksum);
        }
    }

    fn is_sealed(self, bytes: &[u8]) -> bool {
        let at = bytes.len() - TAIL;
        let expected = crc32c(crc32c(self.seed(), &bytes[..at]), &[0; TAIL]);
        !self.has_checksums || word(bytes, at) == Some(expected)
    }
}

/// Where in a commit block its checksum and its time are.
const COMMIT_CHECKSUM: usize = 0x10;
const COMMIT_TIME: usize = 0x30;

/// Whether a block would look like one of the journal's own.
pub(super) fn needs_escape(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_be_bytes())
}

/// Has an escaped block be as it was.
pub(super) fn unescape(bytes: &mut [u8]) {
    bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::{Format, Tag};

    #[test]
    fn blocks_are_read_as_written() {
        for (is_wide, has_checksums) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let format = Format {
                is_wide,
                has_checksums,
                uuid: [7; 16],
            };
            let tag = |at: usize| Tag {
                block: at as u64 + if is_wide { 1 << 40 } else { 0 },
                is_escaped: at.is_multiple_of(3),
                checksum: if has_checksums { at as u32 ^ 0xffff } else { 0 },
            };
            for count in [1, 2, format.tags(1024)] {
                let tags: Vec<_> = (0..count).map(tag).collect();
                let mut block = format.descriptor(9, &tags, 1024);
                assert_eq!(format.tags_of(&block), Some(tags));
                block[500] ^= 1;
                assert!(!has_checksums || format.tags_of(&block).is_none());
            }
            let numbers: Vec<_> = (0..format.revocations(1024))
                .map(|at| tag(at).block)
                .collect();
            let block = format.revocation(9, &numbers, 1024);
            assert_eq!(format.revocations_of(&block), Some(numbers));
            assert!(format.is_commit(&format.commit(9, 1, 1024)));
        }
    }
}
