//! The block of extended attributes of an inode, which several can share
//! (Documentation/filesystems/ext4/attributes.rst of Linux). They are not served, only freed.

use super::Ext4;
use super::cache::Kind;
use super::checksum::crc32c;
use super::error::{Error, Result};
use super::inode::Inode;
use crate::block::BlockDevice;

const MAGIC: u32 = 0xea02_0000;
const COUNT: std::ops::Range<usize> = 4..8;
const CHECKSUM: std::ops::Range<usize> = 16..20;

impl<D: BlockDevice> Ext4<D> {
    /// Takes an inode's block away from it, and frees it if it was the last one.
    pub(super) fn free_attributes(&mut self, inode: &mut Inode) -> Result<()> {
        let block = inode.attribute_block();
        if block == 0 {
            return Ok(());
        }
        let wrong = Error::Damaged("a block of extended attributes");
        if !(self.superblock.first_block() + 1..self.superblock.blocks()).contains(&block) {
            return Err(wrong);
        }
        let word = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
        };
        let bytes = self.cache.get(block)?;
        let (magic, count) = (word(bytes, 0), word(bytes, COUNT.start));
        if magic != MAGIC || count == 0 {
            return Err(wrong);
        }
        inode.clear_attribute_block(self.superblock.block_size())?;
        if count == 1 {
            return self.free_blocks(block, 1, Kind::Metadata);
        }
        let (seed, has_checksums) = (self.superblock.seed(), self.superblock.has_checksums());
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        bytes[COUNT].copy_from_slice(&(count - 1).to_le_bytes());
        if has_checksums {
            bytes[CHECKSUM].fill(0);
            let checksum = crc32c(crc32c(seed, &block.to_le_bytes()), bytes);
            bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        }
        Ok(())
    }
}
