//! Content of files. Each function is one step, after which the file system is consistent.

use nix::errno::Errno;

use super::Ext4;
use super::cache::Kind;
use super::error::{Error, Result};
use super::extent::{Extent, LENGTH_MAX, Run, UNWRITTEN_MAX};
use super::inode::{Inode, Stamp};
use crate::block::BlockDevice;
use crate::files::{FileType, Time};

/// Zeros, for holes.
static ZEROS: [u8; 4096] = [0; 4096];

impl<D: BlockDevice> Ext4<D> {
    /// Largest file, in bytes: 2^32 - 1 blocks, as Linux has it.
    pub(super) fn size_max(&self) -> u64 {
        u64::from(u32::MAX) * self.superblock.block_size() as u64
    }

    /// Returns a file's block and where in it an offset is.
    pub(super) fn within(&self, offset: u64) -> (u32, usize) {
        let size = self.superblock.block_size() as u64;
        ((offset / size) as u32, (offset % size) as usize)
    }

    /// Returns the blocks that a step may need for the extent tree of a file.
    fn tree_growth(inode: &Inode) -> u64 {
        inode.depth() + 2
    }

    /// Returns the bytes of a file from an offset to the end of their block, or of the file.
    pub(super) fn read_block(&mut self, inode: &Inode, offset: u64) -> Result<&[u8]> {
        if offset >= inode.size().min(self.size_max()) {
            return Ok(&[]);
        }
        let (logical, at) = self.within(offset);
        let left = inode.size() - offset;
        let length = left.min((self.superblock.block_size() - at) as u64) as usize;
        let bytes = match self.run(inode, logical)? {
            Run::Extent(extent) if !extent.is_unwritten => {
                let block = extent.physical + u64::from(logical - extent.logical);
                if self.cache.cached(block).is_none() {
                    self.read_ahead(inode, &extent, logical);
                }
                self.cache.get(block)?
            }
            _ => &ZEROS,
        };
        Ok(&bytes[at..at + length])
    }

    /// Notes that a file was read, if that is to be noted.
    pub(super) fn note_access(&mut self, inode: &mut Inode) -> Result<()> {
        let now = Time::now();
        if inode.needs_access_time(now) {
            inode.set_stamp(Stamp::Accessed, now);
            self.store(inode)?;
        }
        Ok(())
    }

    /// Writes bytes as far as the blocks go that are alike. Returns how many.
    pub(super) fn write_run(&mut self, number: u64, offset: u64, bytes: &[u8]) -> Result<usize> {
        let mut inode = self.inode_of(number, FileType::File, Errno::EINVAL)?;
        let block_size = self.superblock.block_size();
        let (logical, at) = self.within(offset);
        let wanted = (at + bytes.len()).div_ceil(block_size) as u32;
        let (extent, is_new) = self.extent_for_writing(&mut inode, logical, wanted)?;
        let room = extent.length as usize * block_size - at;
        let bytes = &bytes[..bytes.len().min(room)];
        let (mut done, mut at) = (0, at);
        for block in extent.physical..extent.physical + u64::from(extent.length) {
            let part = (block_size - at).min(bytes.len() - done);
            let to = match is_new {
                _ if part == block_size => self.cache.overwrite(block, Kind::Data)?,
                true => self.cache.fresh(block, Kind::Data)?,
                false => self.cache.modify(block, Kind::Data)?,
            };
            to[at..at + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
            at = 0;
        }
        let end = offset + done as u64;
        inode.set_size(inode.size().max(end));
        inode.set_changed(true);
        self.store(&inode)?;
        Ok(done)
    }

    /// Returns blocks that can be written: at most `wanted`, and whether their old content is void.
    fn extent_for_writing(
        &mut self,
        inode: &mut Inode,
        logical: u32,
        wanted: u32,
    ) -> Result<(Extent, bool)> {
        let range = u64::from(logical)..u64::from(logical) + u64::from(wanted);
        match self.run(inode, logical)? {
            Run::Extent(extent) => {
                let part = extent
                    .part(&range)
                    .ok_or(Error::Damaged("an extent tree"))?;
                if part.is_unwritten {
                    self.require(Self::tree_growth(inode))?;
                    self.set_written(inode, part)?;
                }
                Ok((part, part.is_unwritten))
            }
            Run::Hole(_, end) => {
                let wanted = u64::from(wanted).min(end - u64::from(logical));
                let extent = self.allocate_extent(inode, logical, wanted as u32, false)?;
                Ok((extent, true))
            }
        }
    }

    /// Gives a hole of a file blocks: at most `wanted`.
    fn allocate_extent(
        &mut self,
        inode: &mut Inode,
        logical: u32,
        wanted: u32,
        is_unwritten: bool,
    ) -> Result<Extent> {
        let growth = Self::tree_growth(inode);
        self.require(growth + 1)?;
        let free = self.superblock.free_blocks() - self.freed.count - growth;
        let most = if is_unwritten {
            UNWRITTEN_MAX
        } else {
            LENGTH_MAX
        };
        let wanted = u64::from(wanted.min(most)).min(free) as u32;
        let goal = match logical.checked_sub(1).map(|before| self.run(inode, before)) {
            Some(Ok(Run::Extent(before))) => before.physical + u64::from(before.length),
            _ => self.goal_of(inode.number),
        };
        let (physical, length) = self.allocate_blocks(goal, wanted)?;
        let extent = Extent {
            logical,
            length,
            physical,
            is_unwritten,
        };
        self.insert_extent(inode, extent)?;
        inode.count_blocks(length.into(), self.superblock.block_size())?;
        Ok(extent)
    }

    /// Has the first hole in a range have blocks. Returns where to go on.
    pub(super) fn allocate_run(&mut self, number: u64, range: std::ops::Range<u32>) -> Result<u64> {
        let mut inode = self.inode_of(number, FileType::File, Errno::EINVAL)?;
        match self.run(&inode, range.start)? {
            Run::Extent(extent) => Ok(extent.end()),
            Run::Hole(_, end) => {
                let wanted = end.min(range.end.into()) - u64::from(range.start);
                let extent = self.allocate_extent(&mut inode, range.start, wanted as u32, true)?;
                inode.set_changed(false);
                self.store(&inode)?;
                Ok(extent.end())
            }
        }
    }

    /// Frees the first blocks in a range. Returns where to go on.
    pub(super) fn punch_run(&mut self, number: u64, range: std::ops::Range<u32>) -> Result<u64> {
        let mut inode = self.inode_of(number, FileType::File, Errno::EINVAL)?;
        match self.run(&inode, range.start)? {
            Run::Hole(_, end) => Ok(end),
            Run::Extent(extent) => {
                self.require(Self::tree_growth(&inode))?;
                let part = extent.part(&(range.start.into()..range.end.into()));
                let part = part.ok_or(Error::Damaged("an extent tree"))?;
                self.free_part(&mut inode, part)?;
                inode.set_changed(true);
                self.store(&inode)?;
                Ok(part.end())
            }
        }
    }

    fn free_part(&mut self, inode: &mut Inode, part: Extent) -> Result<()> {
        let kind = match inode.kind() {
            Some(FileType::Directory) => Kind::Metadata,
            _ => Kind::Data,
        };
        self.remove_extent(inode, part)?;
        inode.count_blocks(-i64::from(part.length), self.superblock.block_size())?;
        self.free_blocks(part.physical, part.length, kind)
    }

    /// Has a range within one block of a file be zeros.
    pub(super) fn clear(&mut self, inode: &Inode, range: std::ops::Range<u64>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (logical, at) = self.within(range.start);
        if let Run::Extent(extent) = self.run(inode, logical)?
            && !extent.is_unwritten
        {
            let block = extent.physical + u64::from(logical - extent.logical);
            let length = (range.end - range.start) as usize;
            self.cache.modify(block, Kind::Data)?[at..at + length].fill(0);
        }
        Ok(())
    }

    /// Sets the size of a file. Returns whether it has to be cut then.
    pub(super) fn set_size(&mut self, inode: &mut Inode, size: u64) -> Result<bool> {
        if size > self.size_max() {
            return Err(Errno::EFBIG.into());
        }
        let before = inode.size();
        inode.set_size(size);
        inode.set_changed(true);
        if size >= before {
            return Ok(false);
        }
        let end = size.next_multiple_of(self.superblock.block_size() as u64);
        self.clear(inode, size..end.min(before.max(size)))?;
        self.add_orphan(inode)?;
        Ok(true)
    }

    /// Frees the last blocks behind the end of a file that is being cut. Returns whether there may be
    /// more.
    pub(super) fn cut_step(&mut self, number: u32) -> Result<bool> {
        let mut inode = self.load(number)?;
        let blocks = inode.size().div_ceil(self.superblock.block_size() as u64);
        let mapped = self.mapped.end(number);
        if inode.has_blocks() && self.shorten(number, blocks.max(mapped))? {
            return Ok(true);
        }
        // What is mapped is cut later.
        if mapped > blocks {
            self.clear_mapped(number.into(), blocks..mapped)?;
            return Ok(false);
        }
        // One without a name is freed when it is closed.
        if inode.links() > 0 {
            self.remove_orphan(&mut inode)?;
        }
        Ok(false)
    }

    /// Frees the last extent of an inode as far as it is behind its first blocks. Returns whether there
    /// was one.
    pub(super) fn shorten(&mut self, number: u32, keep: u64) -> Result<bool> {
        let mut inode = self.load(number)?;
        let last = self.last_extent(&inode)?;
        let Some(part) = last.and_then(|last| last.part(&(keep..u64::MAX))) else {
            return Ok(false);
        };
        self.free_part(&mut inode, part)?;
        self.store(&inode)?;
        Ok(true)
    }

    /// Returns the target of a symbolic link.
    pub(super) fn link_target(&mut self, link: &Inode) -> Result<Vec<u8>> {
        let size = link.size();
        if !link.has_blocks() {
            let target = link.room().get(..size as usize);
            return Ok(target.ok_or(Error::Damaged("a symbolic link"))?.to_vec());
        }
        let target = self.read_block(link, 0)?;
        match target.len() as u64 == size && size > 0 {
            true => Ok(target.to_vec()),
            false => Err(Error::Damaged("a symbolic link")),
        }
    }

    /// Gives a new symbolic link its target. `require` was called.
    pub(super) fn set_target(&mut self, link: &mut Inode, target: &[u8]) -> Result<()> {
        link.set_size(target.len() as u64);
        // One NUL must fit behind it.
        if target.len() < link.room().len() {
            link.room_mut()[..target.len()].copy_from_slice(target);
            return Ok(());
        }
        link.set_extents();
        let extent = self.allocate_extent(link, 0, 1, false)?;
        let bytes = self.cache.fresh(extent.physical, Kind::Data)?;
        bytes[..target.len()].copy_from_slice(target);
        Ok(())
    }
}
