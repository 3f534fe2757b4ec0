//! Files that programs have mapped: their blocks keep their places in the cache and on the device.
//!
//! A mapped file that is cut keeps the blocks of its mapping, full of zeros, and stays on the list of orphans, so that a crash
//! ends what the end of the mapping would have: it is cut to its size.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use nix::errno::Errno;

use super::Ext4;
use super::cache::Kind;
use super::error::{Error, Result};
use super::extent::Run;
use crate::block::BlockDevice;
use crate::files::FileType;
use crate::pages::PAGE;

static ZEROS: [u8; PAGE] = [0; PAGE];

/// The blocks of a file that are mapped, by their numbers in it and on the device.
type Blocks = BTreeMap<u32, u64>;

/// Files that are mapped, by their numbers.
#[derive(Debug, Default)]
pub(super) struct MappedFiles(BTreeMap<u32, Blocks>);

impl MappedFiles {
    /// Returns the number behind the last mapped block of a file; 0 if it is not mapped.
    pub(super) fn end(&self, number: u32) -> u64 {
        let last = self.0.get(&number).and_then(Blocks::last_key_value);
        last.map_or(0, |(logical, _)| u64::from(*logical) + 1)
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Gives blocks of a file their places, as far as the file goes.
    pub(super) fn map_blocks(&mut self, number: u64, blocks: Range<u64>) -> Result<()> {
        if self.superblock.block_size() != PAGE {
            return Err(Errno::ENODEV.into());
        }
        for logical in blocks {
            let logical = u32::try_from(logical).map_err(|_| Errno::EFBIG)?;
            let block = self.written_block(number, logical)?;
            self.cache.pin(block)?;
            let mapped = self.mapped.0.entry(number as u32).or_default();
            mapped.insert(logical, block);
        }
        Ok(())
    }

    /// Returns the block of a file by its number in it: one of zeros, if it had none.
    fn written_block(&mut self, number: u64, logical: u32) -> Result<u64> {
        let inode = self.inode_of(number, FileType::File, Errno::ENODEV)?;
        if let Run::Extent(extent) = self.run(&inode, logical)?
            && !extent.is_unwritten
        {
            return Ok(extent.physical + u64::from(logical - extent.logical));
        }
        let start = u64::from(logical) * PAGE as u64;
        let length = inode.size().saturating_sub(start).min(PAGE as u64) as usize;
        if length == 0 {
            return Err(Errno::EINVAL.into());
        }
        self.attempt(|fs| fs.write_run(number, start, &ZEROS[..length]))?;
        let inode = self.inode_of(number, FileType::File, Errno::ENODEV)?;
        match self.run(&inode, logical)? {
            Run::Extent(extent) => Ok(extent.physical + u64::from(logical - extent.logical)),
            Run::Hole(..) => Err(Error::Damaged("an extent tree")),
        }
    }

    /// Ends the mapping of a file, and cuts it to its size.
    pub(super) fn unmap_blocks(&mut self, number: u32) -> Result<()> {
        let Some(blocks) = self.mapped.0.remove(&number) else {
            return Ok(());
        };
        let kept: BTreeSet<_> = blocks.into_values().collect();
        self.cache.unpin(&kept);
        if self.cache.is_dirty() {
            self.note_change();
        }
        let is_cut = self.orphans.contains(&number) && self.load(number)?.links() > 0;
        match is_cut {
            true => self.cut(number),
            false => Ok(()),
        }
    }

    /// Ends all mappings.
    pub(super) fn unmap_all(&mut self) -> Result<()> {
        let numbers: Vec<_> = self.mapped.0.keys().copied().collect();
        numbers
            .into_iter()
            .try_for_each(|number| self.unmap_blocks(number))
    }

    /// Has blocks of a mapped file be zeros, by their numbers, instead of freeing them.
    pub(super) fn clear_mapped(&mut self, number: u64, blocks: Range<u64>) -> Result<()> {
        let inode = self.inode_of(number, FileType::File, Errno::EINVAL)?;
        let mut next = blocks.start;
        while next < blocks.end {
            let logical = u32::try_from(next).map_err(|_| Errno::EFBIG)?;
            match self.run(&inode, logical)? {
                Run::Hole(_, end) => next = end,
                Run::Extent(extent) if extent.is_unwritten => next = extent.end(),
                Run::Extent(extent) => {
                    let block = extent.physical + u64::from(logical - extent.logical);
                    self.cache.modify(block, Kind::Data)?.fill(0);
                    next += 1;
                }
            }
        }
        Ok(())
    }

    /// Before a mapped file grows: what a program has stored behind its end is not its content.
    pub(super) fn clear_stored(&mut self, number: u64, size: u64) -> Result<()> {
        let end = self.mapped.end(number as u32);
        if end == 0 {
            return Ok(());
        }
        let inode = self.inode_of(number, FileType::File, Errno::EINVAL)?;
        let before = inode.size();
        if size <= before {
            return Ok(());
        }
        let tail = before.next_multiple_of(PAGE as u64);
        self.clear(&inode, before..tail)?;
        self.clear_mapped(number, tail / PAGE as u64..end)
    }
}
