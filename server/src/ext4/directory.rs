//! Directories: entries in blocks, one after the other
//! (Documentation/filesystems/ext4/directory.rst of Linux).
//!
//! Hash trees are not used. Those that Linux has made look like plain directories to who reads them; one
//! that is changed becomes a plain one.

use nix::errno::Errno;

use super::Ext4;
use super::cache::Kind;
use super::checksum::crc32c;
use super::error::{Error, Result};
use super::extent::{Extent, Run};
use super::inode::{Inode, flag};
use crate::block::BlockDevice;
use crate::files::FileType;

/// Bytes of an entry before its name.
const HEAD: usize = 8;
/// Bytes of the checksum at the end of a block, which looks like an entry.
const TAIL: usize = 12;
/// The type of that entry.
const TAIL_TYPE: u8 = 0xde;

/// An entry in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    /// Where it begins.
    pub(super) at: usize,
    /// Its bytes, with those that are free.
    pub(super) length: usize,
    /// What it names; 0 if it is free.
    pub(super) inode: u32,
    pub(super) name: &'a [u8],
}

impl Record<'_> {
    /// Bytes that it needs.
    fn needed(&self) -> usize {
        match self.inode {
            0 => 0,
            _ => size_for(self.name),
        }
    }
}

fn size_for(name: &[u8]) -> usize {
    (HEAD + name.len()).next_multiple_of(4)
}

fn half(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// Iterates over the entries of a block, whose lengths are checked.
pub(super) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Record<'_>>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        (start < bytes.len()).then(|| {
            let record = record(bytes, start);
            at = record
                .as_ref()
                .map_or(bytes.len(), |record| start + record.length);
            record
        })
    })
}

fn record(bytes: &[u8], at: usize) -> Result<Record<'_>> {
    let wrong = Error::Damaged("an entry of a directory");
    if bytes.len() - at < HEAD {
        return Err(wrong);
    }
    let (length, name) = (half(bytes, at + 4), usize::from(bytes[at + 6]));
    let is_good = length % 4 == 0 && length >= HEAD + name && length <= bytes.len() - at;
    match is_good && length >= TAIL.min(bytes.len() - at) {
        true => Ok(Record {
            at,
            length,
            inode: word(bytes, at),
            name: &bytes[at + HEAD..at + HEAD + name],
        }),
        false => Err(wrong),
    }
}

/// Writes an entry.
fn put(bytes: &mut [u8], at: usize, length: usize, inode: u32, (name, kind): (&[u8], u8)) {
    bytes[at..at + 4].copy_from_slice(&inode.to_le_bytes());
    set_length(bytes, at, length);
    bytes[at + 6] = name.len() as u8;
    bytes[at + 7] = kind;
    bytes[at + HEAD..at + HEAD + name.len()].copy_from_slice(name);
}

fn set_length(bytes: &mut [u8], at: usize, length: usize) {
    bytes[at + 4..at + 6].copy_from_slice(&(length as u16).to_le_bytes());
}

/// The type of an entry.
fn type_of(kind: FileType) -> u8 {
    match kind {
        FileType::File => 1,
        FileType::Directory => 2,
        FileType::Link => 7,
    }
}

fn has_tail(bytes: &[u8]) -> bool {
    let at = bytes.len() - TAIL;
    word(bytes, at) == 0 && half(bytes, at + 4) == TAIL && bytes[at + 6..at + 8] == [0, TAIL_TYPE]
}

/// Where in a block a name fits: behind an entry, or in place of a free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    at: usize,
    length: usize,
    /// Bytes that the entry there needs itself.
    used: usize,
}

/// Returns where a name fits.
fn room_for(bytes: &[u8], name: &[u8]) -> Result<Option<Room>> {
    let wanted = size_for(name);
    let end = if has_tail(bytes) {
        bytes.len() - TAIL
    } else {
        bytes.len()
    };
    for record in records(&bytes[..end]) {
        let record = record?;
        let (at, length, used) = (record.at, record.length, record.needed());
        if length >= used + wanted {
            return Ok(Some(Room { at, length, used }));
        }
    }
    Ok(None)
}

/// Writes an entry where it fits.
fn put_into(bytes: &mut [u8], room: Room, inode: u32, (name, kind): (&[u8], u8)) {
    let Room { at, length, used } = room;
    if used > 0 {
        set_length(bytes, at, used);
    }
    put(bytes, at + used, length - used, inode, (name, kind));
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Block on the device.
    block: u64,
    at: usize,
    pub(super) inode: u32,
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the number of a directory's blocks.
    pub(super) fn directory_blocks(&self, directory: &Inode) -> Result<u32> {
        let size = self.superblock.block_size() as u64;
        let blocks = directory.size() / size;
        let is_good = directory.size().is_multiple_of(size) && blocks <= self.superblock.blocks();
        match is_good && blocks > 0 {
            true => u32::try_from(blocks).map_err(|_| Error::Damaged("size of a directory")),
            false => Err(Error::Damaged("size of a directory")),
        }
    }

    /// Returns a directory's block on the device, whose checksum is right.
    pub(super) fn directory_block(&mut self, directory: &Inode, index: u32) -> Result<u64> {
        let extent = match self.run(directory, index)? {
            Run::Extent(extent) if !extent.is_unwritten => extent,
            _ => return Err(Error::Damaged("a hole in a directory")),
        };
        let block = extent.physical + u64::from(index - extent.logical);
        if self.superblock.has_checksums() && !self.cache.is_verified(block) {
            let seed = self.seed_of(directory);
            let bytes = self.cache.get(block)?;
            let at = bytes.len() - TAIL;
            let is_right = match has_tail(bytes) {
                true => word(bytes, at + 8) == crc32c(seed, &bytes[..at]),
                // Blocks of a hash tree have theirs elsewhere.
                false => directory.has(flag::INDEX),
            };
            if !is_right {
                return Err(Error::Damaged("checksum of a directory"));
            }
            self.cache.set_verified(block);
        }
        Ok(block)
    }

    /// Writes the checksum of a directory's block that was changed.
    fn seal(&mut self, directory: &Inode, block: u64) -> Result<()> {
        if !self.superblock.has_checksums() {
            return Ok(());
        }
        let seed = self.seed_of(directory);
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        let at = bytes.len() - TAIL;
        let checksum = crc32c(seed, &bytes[..at]).to_le_bytes();
        bytes[at + 8..].copy_from_slice(&checksum);
        Ok(())
    }

    /// Finds a name.
    pub(super) fn find(&mut self, directory: &Inode, name: &[u8]) -> Result<Option<Found>> {
        for index in 0..self.directory_blocks(directory)? {
            let block = self.directory_block(directory, index)?;
            for record in records(self.cache.get(block)?) {
                let record = record?;
                if record.inode != 0 && record.name == name {
                    return Ok(Some(Found {
                        block,
                        at: record.at,
                        inode: record.inode,
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Whether a directory has no names but its own.
    pub(super) fn is_empty(&mut self, directory: &Inode) -> Result<bool> {
        for index in 0..self.directory_blocks(directory)? {
            let block = self.directory_block(directory, index)?;
            for record in records(self.cache.get(block)?) {
                let record = record?;
                if record.inode != 0 && !matches!(record.name, b"." | b"..") {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Adds a name, which must be free. At most one block is allocated for it, and what the extent tree
    /// needs for that.
    pub(super) fn add_name(
        &mut self,
        directory: &mut Inode,
        name: &[u8],
        (inode, kind): (u32, FileType),
    ) -> Result<()> {
        self.make_plain(directory)?;
        let entry = (name, type_of(kind));
        for index in 0..self.directory_blocks(directory)? {
            let block = self.directory_block(directory, index)?;
            if let Some(room) = room_for(self.cache.get(block)?, name)? {
                put_into(
                    self.cache.modify(block, Kind::Metadata)?,
                    room,
                    inode,
                    entry,
                );
                return self.seal(directory, block);
            }
        }
        let block = self.append_block(directory)?;
        put_first(self.cache.modify(block, Kind::Metadata)?, inode, entry)?;
        self.seal(directory, block)
    }

    /// Gives a directory one more block, without entries.
    fn append_block(&mut self, directory: &mut Inode) -> Result<u64> {
        let block_size = self.superblock.block_size();
        let logical =
            u32::try_from(directory.size() / block_size as u64).map_err(|_| Errno::ENOSPC)?;
        let goal = match self.last_extent(directory)? {
            Some(extent) => extent.physical + u64::from(extent.length),
            None => self.goal_of(directory.number),
        };
        let (block, _) = self.allocate_blocks(goal, 1)?;
        let extent = Extent {
            logical,
            length: 1,
            physical: block,
            is_unwritten: false,
        };
        self.insert_extent(directory, extent)?;
        directory.count_blocks(1, block_size)?;
        directory.set_size(directory.size() + block_size as u64);
        let tail = if self.superblock.has_checksums() {
            TAIL
        } else {
            0
        };
        let bytes = self.cache.fresh(block, Kind::Metadata)?;
        put(bytes, 0, block_size - tail, 0, (&[], 0));
        if tail > 0 {
            put(bytes, block_size - tail, tail, 0, (&[], TAIL_TYPE));
        }
        Ok(block)
    }

    /// Gives a new directory its first block, with the names of itself and its parent.
    pub(super) fn begin_directory(&mut self, directory: &mut Inode, parent: u32) -> Result<()> {
        let block = self.append_block(directory)?;
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        let directories = type_of(FileType::Directory);
        put_first(bytes, directory.number, (b".", directories))?;
        put_first(bytes, parent, (b"..", directories))?;
        self.seal(directory, block)
    }

    /// Removes a name.
    pub(super) fn remove_name(&mut self, directory: &mut Inode, found: Found) -> Result<()> {
        self.make_plain(directory)?;
        let bytes = self.cache.modify(found.block, Kind::Metadata)?;
        let mut before = None;
        for record in records(bytes) {
            let record = record?;
            if record.at == found.at {
                break;
            }
            before = Some((record.at, record.length));
        }
        match before {
            Some((at, length)) => {
                let gone = half(bytes, found.at + 4);
                bytes[found.at..found.at + HEAD].fill(0);
                set_length(bytes, at, length + gone);
            }
            None => bytes[found.at..found.at + 4].fill(0),
        }
        self.seal(directory, found.block)
    }

    /// Has an entry name another inode.
    pub(super) fn set_name(
        &mut self,
        directory: &mut Inode,
        found: Found,
        (inode, kind): (u32, FileType),
    ) -> Result<()> {
        self.make_plain(directory)?;
        let bytes = self.cache.modify(found.block, Kind::Metadata)?;
        bytes[found.at..found.at + 4].copy_from_slice(&inode.to_le_bytes());
        bytes[found.at + 7] = type_of(kind);
        self.seal(directory, found.block)
    }

    /// Has a directory with a hash tree have none. The tree's nodes are in blocks that look empty.
    fn make_plain(&mut self, directory: &mut Inode) -> Result<()> {
        if !directory.has(flag::INDEX) {
            return Ok(());
        }
        let blocks = match self.superblock.has_checksums() {
            true => self.directory_blocks(directory)?,
            false => 0,
        };
        for index in 0..blocks {
            let block = self.directory_block(directory, index)?;
            let bytes = self.cache.get(block)?;
            if has_tail(bytes) {
                continue;
            }
            let last = records(bytes).last().transpose()?;
            let (at, length) = match last {
                Some(last) if last.length >= last.needed() + TAIL + HEAD => (last.at, last.length),
                _ => return Err(Error::Damaged("a hash tree")),
            };
            let bytes = self.cache.modify(block, Kind::Metadata)?;
            let end = bytes.len() - TAIL;
            set_length(bytes, at, length - TAIL);
            put(bytes, end, TAIL, 0, (&[], TAIL_TYPE));
            self.seal(directory, block)?;
        }
        directory.set_flag(flag::INDEX, false);
        Ok(())
    }

    /// Returns where blocks of a new file are best: in the group of its inode.
    pub(super) fn goal_of(&self, inode: u32) -> u64 {
        self.group_start((inode - 1) / self.superblock.inodes_per_group())
    }
}

/// Writes an entry into a block that has room.
fn put_first(bytes: &mut [u8], inode: u32, entry: (&[u8], u8)) -> Result<()> {
    let room = room_for(bytes, entry.0)?;
    let room = room.ok_or(Error::Damaged("a block without room"))?;
    put_into(bytes, room, inode, entry);
    Ok(())
}
