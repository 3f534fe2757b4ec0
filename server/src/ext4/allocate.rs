//! Allocation of blocks and inodes.
//!
//! What a transaction frees is used again only when it is committed: what is on disk until then may refer
//! to it.

use std::collections::HashMap;

use super::Ext4;
use super::bitmap::{self, checked, find_clear};
use super::cache::Kind;
use super::error::{Error, Result};
use super::group::Bitmap;
use crate::block::BlockDevice;

/// Blocks that the running transaction has freed.
#[derive(Debug, Default)]
pub(super) struct Freed {
    /// By group, as a bitmap.
    groups: HashMap<u32, Vec<u8>>,
    pub(super) count: u64,
}

impl Freed {
    /// Forgets them, after a commit.
    pub(super) fn clear(&mut self) {
        self.groups.clear();
        self.count = 0;
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Makes sure that as many blocks can be allocated in this transaction. To be called before anything
    /// is changed: it may commit.
    pub(super) fn require(&mut self, blocks: u64) -> Result<()> {
        let free = |fs: &Self| fs.superblock.free_blocks().saturating_sub(fs.freed.count);
        if free(self) < blocks && self.freed.count > 0 {
            self.commit()?;
        }
        match free(self) >= blocks {
            true => Ok(()),
            false => Err(Error::NoRoom),
        }
    }

    /// Allocates at most `want` blocks that follow each other, near `goal`. Returns the first, and how
    /// many they are.
    pub(super) fn allocate_blocks(&mut self, goal: u64, want: u32) -> Result<(u64, u32)> {
        let groups = self.superblock.groups();
        let valid = self.superblock.first_block()..self.superblock.blocks();
        let goal = if valid.contains(&goal) {
            goal
        } else {
            valid.start
        };
        let within = goal - valid.start;
        let per_group = u64::from(self.superblock.blocks_per_group());
        let (first, at) = ((within / per_group) as u32, (within % per_group) as usize);
        // The first group again at the end, for what is before the goal.
        for step in 0..=groups {
            let group = ((u64::from(first) + u64::from(step)) % u64::from(groups)) as u32;
            let from = if step == 0 { at } else { 0 };
            if let Some(found) = self.allocate_in(group, from, want as usize)? {
                return Ok((
                    self.group_start(group) + found.start as u64,
                    found.len() as u32,
                ));
            }
        }
        Err(Error::NoRoom)
    }

    fn allocate_in(
        &mut self,
        group: u32,
        from: usize,
        want: usize,
    ) -> Result<Option<std::ops::Range<usize>>> {
        let free = self.group(group)?.free(Bitmap::Blocks);
        if free == 0 {
            return Ok(None);
        }
        let block = self.bitmap(group, Bitmap::Blocks)?;
        let bits = self.bits(group, Bitmap::Blocks);
        let freed = self.freed.groups.get(&group).map(Vec::as_slice);
        let want = want.min(free as usize);
        let Some(found) = find_clear(self.cache.get(block)?, freed, from..bits, want) else {
            return Ok(None);
        };
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        bitmap::set(bytes, found.clone(), true);
        self.count(group, Bitmap::Blocks, -(found.len() as i64))?;
        Ok(Some(found))
    }

    /// Counts blocks or inodes of a group that have become free, or have ceased to be.
    fn count(&mut self, group: u32, which: Bitmap, more: i64) -> Result<()> {
        const WRONG: Error = Error::Damaged("counts of free blocks or inodes");
        let of = self.group(group)?;
        let count = i64::from(of.free(which)) + more;
        of.set_free(which, u32::try_from(count).map_err(|_| WRONG)?);
        of.set_changed(which);
        match which {
            Bitmap::Blocks => {
                let all = self.superblock.free_blocks().checked_add_signed(more);
                self.superblock.set_free_blocks(all.ok_or(WRONG)?);
            }
            Bitmap::Inodes => {
                let all = i64::from(self.superblock.free_inodes()) + more;
                self.superblock
                    .set_free_inodes(u32::try_from(all).map_err(|_| WRONG)?);
            }
        }
        Ok(())
    }

    /// Frees blocks. Those with metadata can no longer be replayed from the journal.
    pub(super) fn free_blocks(&mut self, start: u64, length: u32, kind: Kind) -> Result<()> {
        let first_block = self.superblock.first_block();
        let mut left = start..start + u64::from(length);
        if left.start < first_block || left.end > self.superblock.blocks() {
            return Err(Error::Damaged("blocks beyond the device"));
        }
        for block in left.clone() {
            self.cache.forget(block);
            if kind == Kind::Metadata {
                self.revoked.insert(block);
            }
        }
        while !left.is_empty() {
            let per_group = u64::from(self.superblock.blocks_per_group());
            let group = ((left.start - first_block) / per_group) as u32;
            let at = checked(left.start - self.group_start(group), per_group as usize)?;
            let end = (at as u64 + (left.end - left.start)).min(per_group) as usize;
            self.free_in(group, at..end)?;
            left.start += (end - at) as u64;
        }
        Ok(())
    }

    fn free_in(&mut self, group: u32, range: std::ops::Range<usize>) -> Result<()> {
        let block = self.bitmap(group, Bitmap::Blocks)?;
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        if !bitmap::set(bytes, range.clone(), false) {
            return Err(Error::Damaged("a block with two owners"));
        }
        let size = bytes.len();
        let freed = self
            .freed
            .groups
            .entry(group)
            .or_insert_with(|| vec![0; size]);
        bitmap::set(freed, range.clone(), true);
        self.freed.count += range.len() as u64;
        self.count(group, Bitmap::Blocks, range.len() as i64)
    }

    /// Allocates an inode: a directory's where there is room, others' near their directory.
    pub(super) fn allocate_inode(&mut self, directory: u32, is_directory: bool) -> Result<u32> {
        let per_group = self.superblock.inodes_per_group();
        let groups = self.superblock.groups();
        let first = match is_directory {
            true => self.group_for_directory(),
            false => (directory - 1) / per_group,
        };
        for step in 0..groups {
            let group = ((u64::from(first) + u64::from(step)) % u64::from(groups)) as u32;
            if let Some(at) = self.allocate_inode_in(group, is_directory)? {
                return Ok(group * per_group + at + 1);
            }
        }
        Err(Error::NoRoom)
    }

    /// Returns the group with most free blocks among those with free inodes.
    fn group_for_directory(&self) -> u32 {
        let rank = |number: &u32| {
            let group = &self.groups[*number as usize];
            let has_inodes = group.free(Bitmap::Inodes) > 0;
            (
                has_inodes,
                group.free(Bitmap::Blocks),
                std::cmp::Reverse(*number),
            )
        };
        (0..self.groups.len() as u32).max_by_key(rank).unwrap_or(0)
    }

    fn allocate_inode_in(&mut self, group: u32, is_directory: bool) -> Result<Option<u32>> {
        if self.group(group)?.free(Bitmap::Inodes) == 0 {
            return Ok(None);
        }
        let block = self.bitmap(group, Bitmap::Inodes)?;
        let bits = self.bits(group, Bitmap::Inodes);
        let reserved = match group {
            0 => self.superblock.first_inode() as usize - 1,
            _ => 0,
        };
        let found = find_clear(self.cache.get(block)?, None, reserved.min(bits)..bits, 1);
        let Some(found) = found else {
            return Ok(None);
        };
        let at = found.start as u32;
        bitmap::set(self.cache.modify(block, Kind::Metadata)?, found, true);
        self.count(group, Bitmap::Inodes, -1)?;
        let unused = self.group(group)?.unused_inodes().min(bits as u32 - at - 1);
        let of = self.group(group)?;
        of.set_unused_inodes(unused);
        if is_directory {
            of.set_directories(of.directories().saturating_add(1));
        }
        Ok(Some(at))
    }

    /// Frees the number of an inode.
    pub(super) fn free_inode(&mut self, inode: u32, is_directory: bool) -> Result<()> {
        let per_group = self.superblock.inodes_per_group();
        let (group, at) = ((inode - 1) / per_group, ((inode - 1) % per_group) as usize);
        let block = self.bitmap(group, Bitmap::Inodes)?;
        let bytes = self.cache.modify(block, Kind::Metadata)?;
        if !bitmap::set(bytes, at..at + 1, false) {
            return Err(Error::Damaged("a free inode with a name"));
        }
        if is_directory {
            let of = self.group(group)?;
            of.set_directories(of.directories().saturating_sub(1));
        }
        self.count(group, Bitmap::Inodes, 1)
    }
}
