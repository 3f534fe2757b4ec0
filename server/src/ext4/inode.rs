//! Inodes (Documentation/filesystems/ext4/inodes.rst of Linux).

use nix::errno::Errno;
use nix::libc;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::cache::Kind;
use super::checksum::crc32c;
use super::error::{Error, Result};
use super::{Ext4, INODES_MAX};
use crate::block::BlockDevice;
use crate::files::{Attributes, FileType, Time};

/// The root directory.
pub(super) const ROOT: u32 = 2;
/// Bytes of `i_block`.
pub(super) const ROOM: usize = 60;
/// Bytes of an inode without what came later.
const OLD_SIZE: usize = 128;
/// Beyond these, what is needed: all times.
const EXTRA_MIN: u16 = 24;

/// Flags of an inode.
pub(super) mod flag {
    /// A directory has a hash tree.
    pub(in crate::ext4) const INDEX: u32 = 0x1000;
    /// Blocks are counted in the file system's size.
    pub(in crate::ext4) const HUGE_FILE: u32 = 0x4_0000;
    pub(in crate::ext4) const EXTENTS: u32 = 0x8_0000;
    /// What cannot be changed, or only appended to.
    pub(in crate::ext4) const IMMUTABLE: u32 = 0x10;
    pub(in crate::ext4) const APPEND: u32 = 0x20;
    /// Passed on from directories.
    pub(in crate::ext4) const INHERITED: u32 = 0x80;
}

/// As it is on disk.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    mode: U16,
    user: U16,
    size: U32,
    accessed: U32,
    changed: U32,
    modified: U32,
    deleted: U32,
    group: U16,
    links: U16,
    sectors: U32,
    flags: U32,
    version: U32,
    room: [u8; ROOM],
    generation: U32,
    attribute_block: U32,
    size_high: U32,
    fragment: U32,
    sectors_high: U16,
    attribute_block_high: U16,
    user_high: U16,
    group_high: U16,
    checksum: U16,
    reserved: U16,
    extra_size: U16,
    checksum_high: U16,
    changed_extra: U32,
    modified_extra: U32,
    accessed_extra: U32,
    created: U32,
    created_extra: U32,
    version_high: U32,
    project: U32,
}

const SIZE: usize = size_of::<Raw>();
const CHECKSUM: std::ops::Range<usize> = 0x7c..0x7e;
const CHECKSUM_HIGH: std::ops::Range<usize> = 0x82..0x84;

/// Which of the times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    Accessed,
    Modified,
    Changed,
    Created,
}

/// An inode, as a copy: changes are kept by [`Ext4::store`].
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) number: u32,
    raw: Raw,
}

impl Inode {
    /// Creates a new one.
    pub(super) fn new(number: u32, kind: FileType, extra_size: u16, generation: u32) -> Self {
        let mut raw = Raw::new_zeroed();
        raw.mode = (kind.mode() as u16).into();
        raw.extra_size = extra_size.into();
        raw.generation = generation.into();
        Self { number, raw }
    }

    /// What it is; `None` if it is neither file, directory nor symbolic link.
    pub(super) fn kind(&self) -> Option<FileType> {
        match u32::from(self.raw.mode.get()) & libc::S_IFMT {
            libc::S_IFREG => Some(FileType::File),
            libc::S_IFDIR => Some(FileType::Directory),
            libc::S_IFLNK => Some(FileType::Link),
            _ => None,
        }
    }

    /// Whether it is in use.
    pub(super) fn is_used(&self) -> bool {
        self.raw.mode.get() != 0
    }

    pub(super) fn size(&self) -> u64 {
        u64::from(self.raw.size.get()) | u64::from(self.raw.size_high.get()) << 32
    }

    pub(super) fn set_size(&mut self, size: u64) {
        self.raw.size = (size as u32).into();
        self.raw.size_high = ((size >> 32) as u32).into();
    }

    pub(super) fn links(&self) -> u32 {
        self.raw.links.get().into()
    }

    pub(super) fn set_links(&mut self, links: u32) {
        self.raw.links = (links as u16).into();
    }

    pub(super) fn generation(&self) -> u32 {
        self.raw.generation.get()
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.raw.flags.get() & flag != 0
    }

    pub(super) fn set_flag(&mut self, flag: u32, value: bool) {
        let without = self.raw.flags.get() & !flag;
        self.raw.flags = (without | if value { flag } else { 0 }).into();
    }

    /// The extent tree's root, or the target of a short symbolic link.
    pub(super) fn room(&self) -> &[u8; ROOM] {
        &self.raw.room
    }

    pub(super) fn room_mut(&mut self) -> &mut [u8; ROOM] {
        &mut self.raw.room
    }

    /// The block of extended attributes; 0 if none.
    pub(super) fn attribute_block(&self) -> u64 {
        let high = u64::from(self.raw.attribute_block_high.get());
        u64::from(self.raw.attribute_block.get()) | high << 32
    }

    /// Takes the block of extended attributes away.
    pub(super) fn clear_attribute_block(&mut self, block_size: usize) -> Result<()> {
        self.raw.attribute_block = 0.into();
        self.raw.attribute_block_high = 0.into();
        self.count_blocks(-1, block_size)
    }

    /// Whether it has content in blocks: all but short symbolic links have.
    pub(super) fn has_blocks(&self) -> bool {
        match self.kind() {
            Some(FileType::Link) => self.has(flag::EXTENTS),
            kind => kind.is_some(),
        }
    }

    /// Marks it as free.
    pub(super) fn set_freed(&mut self) {
        self.raw.deleted = (Time::now().seconds as u32).into();
        self.raw.mode = 0.into();
        self.set_size(0);
    }

    /// When it was deleted; of an orphan, the next one.
    pub(super) fn deleted(&self) -> u32 {
        self.raw.deleted.get()
    }

    pub(super) fn set_deleted(&mut self, value: u32) {
        self.raw.deleted = value.into();
    }

    fn sectors(&self) -> u64 {
        u64::from(self.raw.sectors.get()) | u64::from(self.raw.sectors_high.get()) << 32
    }

    /// Counts blocks that it got, or lost.
    pub(super) fn count_blocks(&mut self, more: i64, block_size: usize) -> Result<()> {
        let unit = match self.has(flag::HUGE_FILE) {
            true => 1,
            false => block_size as i64 / 512,
        };
        let sectors = self.sectors().checked_add_signed(more * unit);
        let sectors = sectors.ok_or(Error::Damaged("count of an inode's blocks"))?;
        self.raw.sectors = (sectors as u32).into();
        self.raw.sectors_high = ((sectors >> 32) as u16).into();
        Ok(())
    }

    fn stamp(&self, stamp: Stamp) -> Time {
        let (low, extra) = match stamp {
            Stamp::Accessed => (self.raw.accessed, self.raw.accessed_extra),
            Stamp::Modified => (self.raw.modified, self.raw.modified_extra),
            Stamp::Changed => (self.raw.changed, self.raw.changed_extra),
            Stamp::Created => (self.raw.created, self.raw.created_extra),
        };
        // Two bits more for seconds, then nanoseconds.
        let seconds = i64::from(low.get().cast_signed());
        Time {
            seconds: seconds + (i64::from(extra.get() & 3) << 32),
            ns: (extra.get() >> 2).min(999_999_999),
        }
    }

    pub(super) fn set_stamp(&mut self, stamp: Stamp, time: Time) {
        let low = time.seconds as i32;
        let more = (time.seconds.wrapping_sub(low.into()) >> 32) as u32 & 3;
        let (low, extra) = (low.cast_unsigned().into(), (time.ns << 2 | more).into());
        let raw = &mut self.raw;
        match stamp {
            Stamp::Accessed => (raw.accessed, raw.accessed_extra) = (low, extra),
            Stamp::Modified => (raw.modified, raw.modified_extra) = (low, extra),
            Stamp::Changed => (raw.changed, raw.changed_extra) = (low, extra),
            Stamp::Created => (raw.created, raw.created_extra) = (low, extra),
        }
    }

    /// Notes a change of content, or of attributes alone.
    pub(super) fn set_changed(&mut self, is_content: bool) {
        let now = Time::now();
        self.set_stamp(Stamp::Changed, now);
        if is_content {
            self.set_stamp(Stamp::Modified, now);
        }
    }

    /// Whether reading is to be noted, as with Linux' `relatime`: once a day, and after changes.
    pub(super) fn needs_access_time(&self, now: Time) -> bool {
        const DAY_S: i64 = 24 * 60 * 60;
        let accessed = self.stamp(Stamp::Accessed);
        accessed <= self.stamp(Stamp::Modified)
            || accessed <= self.stamp(Stamp::Changed)
            || now.seconds.saturating_sub(accessed.seconds) >= DAY_S
    }

    pub(super) fn set_permissions(&mut self, permissions: u32) {
        let kind = self.raw.mode.get() & libc::S_IFMT as u16;
        self.raw.mode = (kind | permissions as u16 & 0o7777).into();
    }

    pub(super) fn set_user(&mut self, user: u32) {
        self.raw.user = (user as u16).into();
        self.raw.user_high = ((user >> 16) as u16).into();
    }

    pub(super) fn set_group(&mut self, group: u32) {
        self.raw.group = (group as u16).into();
        self.raw.group_high = ((group >> 16) as u16).into();
    }

    /// Returns what programs see.
    pub(super) fn attributes(&self, block_size: usize) -> Result<Attributes> {
        let wide = |high: U16, low: U16| u32::from(high.get()) << 16 | u32::from(low.get());
        let unit = match self.has(flag::HUGE_FILE) {
            true => block_size as u64 / 512,
            false => 1,
        };
        Ok(Attributes {
            kind: self.kind().ok_or(Errno::EOPNOTSUPP)?,
            permissions: u32::from(self.raw.mode.get()) & 0o7777,
            links: self.links(),
            user: wide(self.raw.user_high, self.raw.user),
            group: wide(self.raw.group_high, self.raw.group),
            size: self.size(),
            sectors: self.sectors() * unit,
            accessed: self.stamp(Stamp::Accessed),
            modified: self.stamp(Stamp::Modified),
            changed: self.stamp(Stamp::Changed),
            created: self.stamp(Stamp::Created),
        })
    }

    /// Sets the checksum within all bytes of the inode on disk.
    fn checksum(&self, seed: u32, bytes: &[u8]) -> u32 {
        let crc = crc32c(seed, &self.number.to_le_bytes());
        let crc = crc32c(crc, &self.raw.generation.get().to_le_bytes());
        let crc = crc32c(crc, &bytes[..CHECKSUM.start]);
        let crc = crc32c(crc, &[0, 0]);
        let crc = crc32c(crc, &bytes[CHECKSUM.end..CHECKSUM_HIGH.start]);
        let crc = crc32c(crc, &[0, 0]);
        crc32c(crc, &bytes[CHECKSUM_HIGH.end..])
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the block of an inode, and where it is there.
    fn place_of(&mut self, number: u32) -> Result<(u64, usize)> {
        if number == 0 || number > self.superblock.inodes() {
            return Err(Error::Damaged("an inode that is not there"));
        }
        let per_group = self.superblock.inodes_per_group();
        let (group, at) = ((number - 1) / per_group, (number - 1) % per_group);
        let at = at as usize * self.superblock.inode_size();
        let block_size = self.superblock.block_size();
        let table = self.group(group)?.inode_table();
        Ok((table + (at / block_size) as u64, at % block_size))
    }

    /// Reads any inode.
    pub(super) fn load(&mut self, number: u32) -> Result<Inode> {
        if let Some(inode) = self.inodes.get(&number) {
            return Ok(inode.clone());
        }
        let inode = self.load_checked(number)?;
        self.keep(&inode);
        Ok(inode)
    }

    /// Keeps what was read, so that it is not read and checked again.
    fn keep(&mut self, inode: &Inode) {
        if self.inodes.len() >= INODES_MAX {
            self.inodes.clear();
        }
        self.inodes.insert(inode.number, inode.clone());
    }

    fn load_checked(&mut self, number: u32) -> Result<Inode> {
        let (block, at) = self.place_of(number)?;
        let size = self.superblock.inode_size();
        let (seed, has_checksums) = (self.superblock.seed(), self.superblock.has_checksums());
        let bytes = &self.cache.get(block)?[at..at + size];
        let raw = Raw::read_from_bytes(&bytes[..SIZE]);
        let raw = raw.map_err(|_| Error::Damaged("an inode"))?;
        let inode = Inode { number, raw };
        let stored =
            u32::from(inode.raw.checksum_high.get()) << 16 | u32::from(inode.raw.checksum.get());
        if has_checksums && inode.is_used() && stored != inode.checksum(seed, bytes) {
            return Err(Error::Damaged("checksum of an inode"));
        }
        let extra = inode.raw.extra_size.get();
        if inode.is_used()
            && number >= self.superblock.first_inode()
            && (extra < EXTRA_MIN || OLD_SIZE + usize::from(extra) > size)
        {
            return Err(Error::Damaged("size of an inode"));
        }
        Ok(inode)
    }

    /// Reads an inode that a name leads to.
    pub(super) fn inode(&mut self, number: u64) -> Result<Inode> {
        let number = u32::try_from(number).map_err(|_| Errno::ESTALE)?;
        if number != ROOT && number < self.superblock.first_inode() {
            return Err(Error::Damaged("a name of a reserved inode"));
        }
        let inode = self.load(number)?;
        let is_open = || self.orphans.contains(&number);
        match inode.is_used() && (inode.links() > 0 || is_open()) {
            true => Ok(inode),
            false => Err(Errno::ESTALE.into()),
        }
    }

    /// Reads an inode that must be of a type.
    pub(super) fn inode_of(&mut self, number: u64, kind: FileType, or: Errno) -> Result<Inode> {
        let inode = self.inode(number)?;
        match inode.kind() == Some(kind) {
            true => Ok(inode),
            false => Err(or.into()),
        }
    }

    /// Keeps an inode's changes.
    pub(super) fn store(&mut self, inode: &Inode) -> Result<()> {
        self.store_over(inode, false)
    }

    /// Keeps a new inode, in place of what was there.
    pub(super) fn store_new(&mut self, inode: &Inode) -> Result<()> {
        self.store_over(inode, true)
    }

    fn store_over(&mut self, inode: &Inode, is_new: bool) -> Result<()> {
        let (block, at) = self.place_of(inode.number)?;
        let size = self.superblock.inode_size();
        let (seed, has_checksums) = (self.superblock.seed(), self.superblock.has_checksums());
        let bytes = &mut self.cache.modify(block, Kind::Metadata)?[at..at + size];
        if is_new {
            bytes.fill(0);
        }
        // Behind its own size there may be extended attributes.
        let own = (OLD_SIZE + usize::from(inode.raw.extra_size.get())).min(SIZE);
        bytes[..own].copy_from_slice(&inode.raw.as_bytes()[..own]);
        if has_checksums {
            let checksum = inode.checksum(seed, bytes);
            bytes[CHECKSUM].copy_from_slice(&(checksum as u16).to_le_bytes());
            bytes[CHECKSUM_HIGH].copy_from_slice(&((checksum >> 16) as u16).to_le_bytes());
        }
        self.keep(inode);
        Ok(())
    }
}
