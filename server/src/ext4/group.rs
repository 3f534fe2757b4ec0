//! Group descriptors (Documentation/filesystems/ext4/group_descr.rst of Linux).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Ext4;
use super::cache::{Cache, Kind};
use super::checksum::{crc16, crc32c};
use super::error::{Error, Result};
use super::superblock::Superblock;
use crate::block::BlockDevice;

/// As it is on disk; the second half only with the feature `64bit`.
#[derive(Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    block_bitmap: U32,
    inode_bitmap: U32,
    inode_table: U32,
    free_blocks: U16,
    free_inodes: U16,
    directories: U16,
    flags: U16,
    exclude_bitmap: U32,
    block_bitmap_checksum: U16,
    inode_bitmap_checksum: U16,
    unused_inodes: U16,
    checksum: U16,
    block_bitmap_high: U32,
    inode_bitmap_high: U32,
    inode_table_high: U32,
    free_blocks_high: U16,
    free_inodes_high: U16,
    directories_high: U16,
    unused_inodes_high: U16,
    exclude_bitmap_high: U32,
    block_bitmap_checksum_high: U16,
    inode_bitmap_checksum_high: U16,
    reserved: U32,
}

const SIZE: usize = size_of::<Raw>();
const CHECKSUM: std::ops::Range<usize> = 0x1e..0x20;

/// Flags: which parts of a group were never written.
mod flag {
    pub(super) const INODE_UNINIT: u16 = 1;
    pub(super) const BLOCK_UNINIT: u16 = 2;
}

/// Which bitmap of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bitmap {
    Blocks,
    Inodes,
}

/// A group descriptor, whose blocks are checked to be on the device.
#[derive(Clone, Debug)]
pub(super) struct Group {
    raw: Raw,
    is_dirty: bool,
    /// Bitmaps that were changed since their checksums were computed.
    changed: [bool; 2],
}

fn join(high: U32, low: U32) -> u64 {
    u64::from(high.get()) << 32 | u64::from(low.get())
}

fn join16(high: U16, low: U16) -> u32 {
    u32::from(high.get()) << 16 | u32::from(low.get())
}

impl Group {
    pub(super) fn bitmap(&self, which: Bitmap) -> u64 {
        match which {
            Bitmap::Blocks => join(self.raw.block_bitmap_high, self.raw.block_bitmap),
            Bitmap::Inodes => join(self.raw.inode_bitmap_high, self.raw.inode_bitmap),
        }
    }

    pub(super) fn inode_table(&self) -> u64 {
        join(self.raw.inode_table_high, self.raw.inode_table)
    }

    /// Whether a bitmap was never written.
    pub(super) fn is_unwritten(&self, which: Bitmap) -> bool {
        self.raw.flags.get() & Self::flag(which) != 0
    }

    pub(super) fn set_written(&mut self, which: Bitmap) {
        self.raw.flags = (self.raw.flags.get() & !Self::flag(which)).into();
        self.set_changed(which);
    }

    fn flag(which: Bitmap) -> u16 {
        match which {
            Bitmap::Blocks => flag::BLOCK_UNINIT,
            Bitmap::Inodes => flag::INODE_UNINIT,
        }
    }

    /// Notes that a bitmap has changed.
    pub(super) fn set_changed(&mut self, which: Bitmap) {
        self.is_dirty = true;
        self.changed[which as usize] = true;
    }

    /// Number of free blocks or inodes.
    pub(super) fn free(&self, which: Bitmap) -> u32 {
        match which {
            Bitmap::Blocks => join16(self.raw.free_blocks_high, self.raw.free_blocks),
            Bitmap::Inodes => join16(self.raw.free_inodes_high, self.raw.free_inodes),
        }
    }

    pub(super) fn set_free(&mut self, which: Bitmap, count: u32) {
        self.is_dirty = true;
        let (high, low) = match which {
            Bitmap::Blocks => (&mut self.raw.free_blocks_high, &mut self.raw.free_blocks),
            Bitmap::Inodes => (&mut self.raw.free_inodes_high, &mut self.raw.free_inodes),
        };
        (*high, *low) = (((count >> 16) as u16).into(), (count as u16).into());
    }

    pub(super) fn directories(&self) -> u32 {
        join16(self.raw.directories_high, self.raw.directories)
    }

    pub(super) fn set_directories(&mut self, count: u32) {
        self.is_dirty = true;
        self.raw.directories_high = ((count >> 16) as u16).into();
        self.raw.directories = (count as u16).into();
    }

    /// Inodes at the end of the table that were never used.
    pub(super) fn unused_inodes(&self) -> u32 {
        join16(self.raw.unused_inodes_high, self.raw.unused_inodes)
    }

    pub(super) fn set_unused_inodes(&mut self, count: u32) {
        self.is_dirty = true;
        self.raw.unused_inodes_high = ((count >> 16) as u16).into();
        self.raw.unused_inodes = (count as u16).into();
    }

    fn checksum(&self, number: u32, superblock: &Superblock) -> u16 {
        let size = superblock.descriptor_size().min(SIZE);
        let bytes = &self.raw.as_bytes()[..size];
        let (head, tail) = (&bytes[..CHECKSUM.start], &bytes[CHECKSUM.end..]);
        if superblock.has_checksums() {
            let crc = crc32c(superblock.seed(), &number.to_le_bytes());
            return crc32c(crc32c(crc32c(crc, head), &[0, 0]), tail) as u16;
        }
        let crc = crc16(crc16(!0, superblock.uuid()), &number.to_le_bytes());
        crc16(crc16(crc, head), tail)
    }

    pub(super) fn check(&self, number: u32, superblock: &Superblock) -> Result<()> {
        let has_checksum = superblock.has_checksums() || superblock.has_group_checksums();
        if has_checksum && self.raw.checksum.get() != self.checksum(number, superblock) {
            return Err(Error::Damaged("checksum of a group descriptor"));
        }
        let table = superblock.inodes_per_group() as usize * superblock.inode_size();
        let table = (table / superblock.block_size()) as u64;
        let blocks = [
            (self.bitmap(Bitmap::Blocks), 1),
            (self.bitmap(Bitmap::Inodes), 1),
            (self.inode_table(), table),
        ];
        let valid = superblock.first_block() + 1..=superblock.blocks();
        let is_good = blocks.iter().all(|(start, length)| {
            valid.contains(start)
                && start
                    .checked_add(*length)
                    .is_some_and(|end| valid.contains(&end))
        });
        let counts = [
            (self.free(Bitmap::Blocks), superblock.blocks_per_group()),
            (self.free(Bitmap::Inodes), superblock.inodes_per_group()),
            (self.unused_inodes(), superblock.inodes_per_group()),
        ];
        match is_good && counts.iter().all(|(count, most)| count <= most) {
            true => Ok(()),
            false => Err(Error::Damaged("a group descriptor")),
        }
    }
}

/// Returns the block of a group's descriptor, and where it is there.
fn place(superblock: &Superblock, number: u32) -> (u64, usize) {
    let size = superblock.descriptor_size();
    let per_block = superblock.block_size() / size;
    let block = superblock.first_block() + 1 + u64::from(number) / per_block as u64;
    (block, number as usize % per_block * size)
}

/// Reads all group descriptors.
pub(super) fn load<D: BlockDevice>(
    cache: &mut Cache<D>,
    superblock: &Superblock,
) -> Result<Vec<Group>> {
    let size = superblock.descriptor_size().min(SIZE);
    let load = |number| {
        let (block, at) = place(superblock, number);
        let mut bytes = [0; SIZE];
        bytes[..size].copy_from_slice(&cache.get(block)?[at..at + size]);
        let raw = Raw::read_from_bytes(&bytes).map_err(|_| Error::NoExt4)?;
        let group = Group {
            raw,
            is_dirty: false,
            changed: [false; 2],
        };
        Ok(group)
    };
    (0..superblock.groups()).map(load).collect()
}

impl<D: BlockDevice> Ext4<D> {
    pub(super) fn group(&mut self, number: u32) -> Result<&mut Group> {
        let group = self.groups.get_mut(number as usize);
        group.ok_or(Error::Damaged("a group that is not there"))
    }

    /// Writes the descriptors that were changed to the cache, with their checksums.
    pub(super) fn store_groups(&mut self) -> Result<()> {
        let size = self.superblock.descriptor_size().min(SIZE);
        for (number, group) in (0..).zip(&mut self.groups) {
            if !std::mem::take(&mut group.is_dirty) {
                continue;
            }
            for which in [Bitmap::Blocks, Bitmap::Inodes] {
                let is_changed = std::mem::take(&mut group.changed[which as usize]);
                if is_changed && self.superblock.has_checksums() {
                    let bytes = self.cache.get(group.bitmap(which))?;
                    let checksum = bitmap_checksum(&self.superblock, bytes, which);
                    set_bitmap_checksum(&mut group.raw, which, checksum);
                }
            }
            if self.superblock.has_checksums() || self.superblock.has_group_checksums() {
                group.raw.checksum = group.checksum(number, &self.superblock).into();
            }
            let (block, at) = place(&self.superblock, number);
            let bytes = self.cache.modify(block, Kind::Metadata)?;
            bytes[at..at + size].copy_from_slice(&group.raw.as_bytes()[..size]);
        }
        Ok(())
    }

    /// Checks the checksum of a bitmap that was read.
    pub(super) fn check_bitmap(&mut self, number: u32, which: Bitmap) -> Result<()> {
        let group = self.group(number)?;
        let (block, raw) = (group.bitmap(which), group.raw.clone());
        if !self.superblock.has_checksums() || self.cache.is_verified(block) {
            return Ok(());
        }
        let found = match which {
            Bitmap::Blocks => join16(raw.block_bitmap_checksum_high, raw.block_bitmap_checksum),
            Bitmap::Inodes => join16(raw.inode_bitmap_checksum_high, raw.inode_bitmap_checksum),
        };
        let expected = bitmap_checksum(&self.superblock, self.cache.get(block)?, which);
        // Short descriptors have the lower half alone.
        let mask = if self.superblock.is_wide() {
            !0
        } else {
            0xffff
        };
        match found & mask == expected & mask {
            true => {
                self.cache.set_verified(block);
                Ok(())
            }
            false => Err(Error::Damaged("checksum of a bitmap")),
        }
    }
}

fn bitmap_checksum(superblock: &Superblock, bytes: &[u8], which: Bitmap) -> u32 {
    let bits = match which {
        Bitmap::Blocks => superblock.blocks_per_group(),
        Bitmap::Inodes => superblock.inodes_per_group(),
    };
    crc32c(superblock.seed(), &bytes[..bits as usize / 8])
}

fn set_bitmap_checksum(raw: &mut Raw, which: Bitmap, checksum: u32) {
    let (high, low) = match which {
        Bitmap::Blocks => (
            &mut raw.block_bitmap_checksum_high,
            &mut raw.block_bitmap_checksum,
        ),
        Bitmap::Inodes => (
            &mut raw.inode_bitmap_checksum_high,
            &mut raw.inode_bitmap_checksum,
        ),
    };
    (*high, *low) = (((checksum >> 16) as u16).into(), (checksum as u16).into());
}
