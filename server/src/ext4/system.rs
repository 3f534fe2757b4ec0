//! The calls of a [`FileSystem`], each of one or more steps.

use std::ops::Range;

use nix::errno::Errno;

use super::Ext4;
use super::directory::records;
use super::error::{Error, Result};
use super::inode::{Inode, ROOT, Stamp, flag};
use crate::block::BlockDevice;
use crate::files::{
    Attributes, Changes, Entry, FileSystem, FileType, Inode as Number, Statistics, Time,
};
use crate::pages::PagePool;

type Answer<T> = std::result::Result<T, Errno>;

/// Most links of an inode, as Linux has it.
const LINKS_MAX: u32 = 65_000;
/// An entry's place is where it begins, behind those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

impl<D: BlockDevice> Ext4<D> {
    fn directory(&mut self, number: Number) -> Result<Inode> {
        self.inode_of(number, FileType::Directory, Errno::ENOTDIR)
    }

    /// Fails with [`Errno::EPERM`] if an inode must not be changed so.
    fn may_change(inode: &Inode, appends: bool) -> Result<()> {
        match inode.has(flag::IMMUTABLE) || inode.has(flag::APPEND) && !appends {
            true => Err(Errno::EPERM.into()),
            false => Ok(()),
        }
    }

    /// Returns the blocks that a new name may need.
    fn name_growth(directory: &Inode) -> u64 {
        directory.depth() + 3
    }

    /// Counts a directory's new subdirectory, or one fewer.
    fn count_subdirectory(&self, directory: &mut Inode, is_more: bool) -> Result<()> {
        let links = directory.links();
        let counted = match is_more {
            // Too many to be counted.
            _ if links == 1 => 1,
            true if links < LINKS_MAX - 1 => links + 1,
            true if self.superblock.has_many_directories() => 1,
            true => return Err(Errno::EMLINK.into()),
            false => links.saturating_sub(1).max(2),
        };
        directory.set_links(counted);
        Ok(())
    }

    fn create_step(
        &mut self,
        number: Number,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<Number> {
        let mut directory = self.directory(number)?;
        Self::may_change(&directory, true)?;
        if target.len() >= self.superblock.block_size() {
            return Err(Errno::ENAMETOOLONG.into());
        }
        // One for content, with its extent.
        self.require(Self::name_growth(&directory) + 3)?;
        if self.superblock.free_inodes() == 0 {
            return Err(Error::NoRoom);
        }
        let is_directory = attributes.kind == FileType::Directory;
        if is_directory {
            self.count_subdirectory(&mut directory, true)?;
        }
        let own = self.allocate_inode(directory.number, is_directory)?;
        let mut inode = self.new_inode(own, attributes, &directory);
        match attributes.kind {
            FileType::File => inode.set_extents(),
            FileType::Link => self.set_target(&mut inode, target)?,
            FileType::Directory => {
                inode.set_extents();
                inode.set_links(2);
                self.begin_directory(&mut inode, directory.number)?;
            }
        }
        self.store_new(&inode)?;
        self.add_name(&mut directory, name, (own, attributes.kind))?;
        directory.set_changed(true);
        self.store(&directory)?;
        Ok(own.into())
    }

    fn new_inode(&self, number: u32, attributes: &Attributes, directory: &Inode) -> Inode {
        let now = Time::now();
        let extra = self.superblock.extra_size();
        let mut inode = Inode::new(number, attributes.kind, extra, now.ns ^ number);
        inode.set_permissions(attributes.permissions);
        inode.set_user(attributes.user);
        inode.set_group(attributes.group);
        inode.set_links(1);
        inode.set_flag(flag::INHERITED, directory.has(flag::INHERITED));
        for stamp in [
            Stamp::Accessed,
            Stamp::Modified,
            Stamp::Changed,
            Stamp::Created,
        ] {
            inode.set_stamp(stamp, now);
        }
        inode
    }

    /// Takes a name away from an inode, which becomes an orphan if that was the last one.
    fn drop_name(&mut self, directory: &mut Inode, number: Number) -> Result<()> {
        let mut inode = self.inode(number)?;
        let links = match inode.kind() {
            Some(FileType::Directory) => {
                self.count_subdirectory(directory, false)?;
                0
            }
            _ => inode.links().saturating_sub(1),
        };
        inode.set_links(links);
        inode.set_changed(false);
        match links {
            0 => self.add_orphan(&mut inode),
            _ => self.store(&inode),
        }
    }

    /// Fails if an inode's name cannot be removed.
    fn may_remove(&mut self, number: Number) -> Result<()> {
        let inode = self.inode(number)?;
        Self::may_change(&inode, false)?;
        match inode.kind() {
            _ if inode.number == ROOT => Err(Error::Damaged("a name of the root directory")),
            Some(FileType::Directory) if !self.is_empty(&inode)? => Err(Errno::ENOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    fn unlink_step(&mut self, number: Number, name: &[u8]) -> Result<()> {
        let mut directory = self.directory(number)?;
        Self::may_change(&directory, false)?;
        let found = self.find(&directory, name)?.ok_or(Errno::ENOENT)?;
        self.may_remove(found.inode.into())?;
        self.remove_name(&mut directory, found)?;
        self.drop_name(&mut directory, found.inode.into())?;
        directory.set_changed(true);
        self.store(&directory)
    }

    fn link_step(&mut self, number: Number, directory: Number, name: &[u8]) -> Result<()> {
        let mut directory = self.directory(directory)?;
        let mut inode = self.inode(number)?;
        Self::may_change(&directory, true)?;
        Self::may_change(&inode, false)?;
        if inode.links() >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        let kind = inode.kind().ok_or(Errno::EPERM)?;
        self.require(Self::name_growth(&directory))?;
        self.add_name(&mut directory, name, (inode.number, kind))?;
        directory.set_changed(true);
        self.store(&directory)?;
        inode.set_links(inode.links() + 1);
        inode.set_changed(false);
        match inode.links() {
            1 => self.remove_orphan(&mut inode),
            _ => self.store(&inode),
        }
    }

    fn rename_step(&mut self, from: (Number, &[u8]), to: (Number, &[u8])) -> Result<()> {
        let mut source = self.directory(from.0)?;
        let target = self.directory(to.0)?;
        Self::may_change(&source, false)?;
        Self::may_change(&target, true)?;
        let found = self.find(&source, from.1)?.ok_or(Errno::ENOENT)?;
        let inode = self.inode(found.inode.into())?;
        let kind = inode.kind().ok_or(Errno::EOPNOTSUPP)?;
        let replaced = self.find(&target, to.1)?;
        if let Some(replaced) = replaced {
            self.may_remove(replaced.inode.into())?;
        }
        self.require(Self::name_growth(&target))?;
        self.remove_name(&mut source, found)?;
        let is_moved = from.0 != to.0 && kind == FileType::Directory;
        if is_moved {
            self.count_subdirectory(&mut source, false)?;
        }
        source.set_changed(true);
        self.store(&source)?;
        // It may be the same directory.
        let mut target = self.directory(to.0)?;
        match self.find(&target, to.1)? {
            Some(replaced) => {
                self.drop_name(&mut target, replaced.inode.into())?;
                self.set_name(&mut target, replaced, (inode.number, kind))?;
            }
            None => self.add_name(&mut target, to.1, (inode.number, kind))?,
        }
        if is_moved {
            self.count_subdirectory(&mut target, true)?;
            self.set_parent(inode.number, target.number)?;
        }
        target.set_changed(true);
        self.store(&target)?;
        let mut inode = self.load(inode.number)?;
        inode.set_changed(false);
        self.store(&inode)
    }

    /// Has a directory that was moved name another parent.
    fn set_parent(&mut self, number: u32, parent: u32) -> Result<()> {
        let mut inode = self.load(number)?;
        let own = self.find(&inode, b"..")?;
        let own = own.ok_or(Error::Damaged("a directory without parent"))?;
        self.set_name(&mut inode, own, (parent, FileType::Directory))?;
        self.store(&inode)
    }

    /// Changes attributes. Returns whether the file has to be cut to its size then.
    fn change_step(&mut self, number: Number, changes: &Changes) -> Result<bool> {
        let mut inode = self.inode(number)?;
        Self::may_change(&inode, changes.size.is_none())?;
        let mut is_to_be_cut = false;
        if let Some(size) = changes.size {
            if inode.kind() != Some(FileType::File) {
                return Err(Errno::EINVAL.into());
            }
            self.clear_stored(number, size)?;
            is_to_be_cut = self.set_size(&mut inode, size)?;
        }
        if let Some(permissions) = changes.permissions {
            inode.set_permissions(permissions);
        }
        if let Some(user) = changes.user {
            inode.set_user(user);
        }
        if let Some(group) = changes.group {
            inode.set_group(group);
        }
        inode.set_changed(false);
        for (stamp, time) in [
            (Stamp::Accessed, changes.accessed),
            (Stamp::Modified, changes.modified),
        ] {
            if let Some(time) = time {
                inode.set_stamp(stamp, time);
            }
        }
        self.store(&inode)?;
        Ok(is_to_be_cut)
    }

    /// Returns the first entry at or behind a place in a directory.
    fn entry_from(&mut self, directory: &Inode, place: u64) -> Result<Option<Entry>> {
        let size = self.superblock.block_size() as u64;
        let blocks = self.directory_blocks(directory)?;
        let first = u32::try_from(place / size).unwrap_or(u32::MAX).min(blocks);
        for index in first..blocks {
            let start = u64::from(index) * size;
            let block = self.directory_block(directory, index)?;
            for record in records(self.cache.get(block)?) {
                let record = record?;
                let at = start + record.at as u64;
                let is_own = matches!(record.name, b"." | b"..");
                if at >= place && record.inode != 0 && !is_own {
                    return Ok(Some(Entry {
                        cookie: at + FIRST_COOKIE,
                        name: record.name.to_vec(),
                        inode: record.inode.into(),
                    }));
                }
            }
        }
        Ok(None)
    }

    /// Has a range of a file be zeros: of blocks that are not whole, these bytes.
    fn clear_step(&mut self, number: Number, start: u64, end: u64) -> Result<()> {
        let mut inode = self.inode_of(number, FileType::File, Errno::EINVAL)?;
        Self::may_change(&inode, false)?;
        let size = self.superblock.block_size() as u64;
        let end = end.min(inode.size().next_multiple_of(size));
        let start = start.min(end);
        let (first, last) = (start.next_multiple_of(size), end / size * size);
        self.clear(&inode, start..first.min(end))?;
        if last >= first {
            self.clear(&inode, last..end)?;
        }
        inode.set_changed(true);
        self.store(&inode)
    }

    /// Returns the whole blocks of a range, or all that it touches.
    fn blocks_of(&self, offset: u64, end: u64, is_whole: bool) -> std::ops::Range<u32> {
        let size = self.superblock.block_size() as u64;
        let most = |block: u64| block.min(u32::MAX.into()) as u32;
        match is_whole {
            true => most(offset.div_ceil(size))..most(end / size),
            false => most(offset / size)..most(end.div_ceil(size)),
        }
    }
}

impl<D: BlockDevice> FileSystem for Ext4<D> {
    fn root(&self) -> Number {
        ROOT.into()
    }

    fn pages(&self, _: Number) -> Option<&PagePool> {
        Some(self.cache.pages())
    }

    fn lookup(&mut self, directory: Number, name: &[u8]) -> Answer<Number> {
        let directory = self.directory(directory)?;
        let found = self.find(&directory, name)?.ok_or(Errno::ENOENT)?;
        Ok(self.inode(found.inode.into())?.number.into())
    }

    fn parent(&mut self, directory: Number) -> Answer<Number> {
        let directory = self.directory(directory)?;
        let found = self.find(&directory, b"..")?;
        let found = found.ok_or(Error::Damaged("a directory without parent"))?;
        Ok(self.directory(found.inode.into())?.number.into())
    }

    fn attributes(&mut self, inode: Number) -> Answer<Attributes> {
        let block_size = self.superblock.block_size();
        Ok(self.inode(inode)?.attributes(block_size)?)
    }

    fn change(&mut self, inode: Number, changes: &Changes) -> Answer<()> {
        match self.attempt(|fs| fs.change_step(inode, changes))? {
            true => Ok(self.cut(inode as u32)?),
            false => Ok(()),
        }
    }

    fn read(&mut self, file: Number, offset: u64) -> Answer<&[u8]> {
        let mut inode = self.inode_of(file, FileType::File, Errno::EINVAL)?;
        if self.stopped.is_none() && offset < inode.size() {
            self.attempt(|fs| fs.note_access(&mut inode))?;
        }
        Ok(self.read_block(&inode, offset)?)
    }

    fn peek(&mut self, file: Number, offset: u64) -> Answer<&[u8]> {
        let inode = self.inode_of(file, FileType::File, Errno::EINVAL)?;
        Ok(self.read_block(&inode, offset)?)
    }

    fn share(&mut self, file: Number, offset: u64, size: u64) {
        self.share_ahead(file, offset, size);
    }

    fn map(&mut self, file: Number, numbers: Range<u64>) -> Answer<()> {
        Ok(self.map_blocks(file, numbers)?)
    }

    fn unmap(&mut self, file: Number) -> Answer<()> {
        Ok(self.unmap_blocks(file as u32)?)
    }

    fn write(&mut self, file: Number, offset: u64, bytes: &[u8]) -> Answer<usize> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.size_max()) {
            return Err(Errno::EFBIG);
        }
        self.attempt(|fs| fs.clear_stored(file, offset))?;
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match self.attempt(|fs| fs.write_run(file, at, &bytes[done..])) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    fn allocate(&mut self, file: Number, offset: u64, length: u64) -> Answer<()> {
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= self.size_max());
        let mut left = self.blocks_of(offset, end.ok_or(Errno::EFBIG)?, false);
        while !left.is_empty() {
            let next = self.attempt(|fs| fs.allocate_run(file, left.clone()))?;
            left.start = next.min(left.end.into()) as u32;
        }
        Ok(())
    }

    fn punch(&mut self, file: Number, offset: u64, length: u64) -> Answer<()> {
        let end = offset.saturating_add(length);
        self.attempt(|fs| fs.clear_step(file, offset, end))?;
        let mut left = self.blocks_of(offset, end, true);
        if self.mapped.end(file as u32) > 0 {
            let blocks = left.start.into()..left.end.into();
            return Ok(self.attempt(|fs| fs.clear_mapped(file, blocks))?);
        }
        while !left.is_empty() {
            let next = self.attempt(|fs| fs.punch_run(file, left.clone()))?;
            left.start = next.min(left.end.into()) as u32;
        }
        Ok(())
    }

    fn create(
        &mut self,
        directory: Number,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Answer<Number> {
        Ok(self.attempt(|fs| fs.create_step(directory, name, attributes, target))?)
    }

    fn target(&mut self, link: Number) -> Answer<Vec<u8>> {
        let link = self.inode_of(link, FileType::Link, Errno::EINVAL)?;
        Ok(self.link_target(&link)?)
    }

    fn link(&mut self, inode: Number, directory: Number, name: &[u8]) -> Answer<()> {
        Ok(self.attempt(|fs| fs.link_step(inode, directory, name))?)
    }

    fn unlink(&mut self, directory: Number, name: &[u8]) -> Answer<()> {
        Ok(self.attempt(|fs| fs.unlink_step(directory, name))?)
    }

    fn rename(&mut self, from: (Number, &[u8]), to: (Number, &[u8])) -> Answer<()> {
        Ok(self.attempt(|fs| fs.rename_step(from, to))?)
    }

    fn next_entry(&mut self, directory: Number, after: u64) -> Answer<Option<Entry>> {
        let mut inode = self.directory(directory)?;
        let place = (after + 1).saturating_sub(FIRST_COOKIE);
        if self.stopped.is_none() && place == 0 {
            self.attempt(|fs| fs.note_access(&mut inode))?;
        }
        Ok(self.entry_from(&inode, place)?)
    }

    fn free(&mut self, inode: Number) -> Answer<()> {
        let inode = self.inode(inode)?;
        match inode.links() {
            0 => Ok(self.free_orphan(inode.number)?),
            _ => Err(Errno::EBUSY),
        }
    }

    fn sync(&mut self, _: Number, _: bool) -> Answer<()> {
        // A transaction has the changes of all files.
        Ok(self.commit()?)
    }

    fn statistics(&mut self) -> Answer<Statistics> {
        let pages = |blocks: u64| blocks * self.superblock.block_size() as u64 / 4096;
        Ok(Statistics {
            blocks: pages(self.superblock.blocks()),
            free_blocks: pages(self.superblock.free_blocks()),
            inodes: self.superblock.inodes().into(),
            free_inodes: self.superblock.free_inodes().into(),
        })
    }
}
