//! Orphans: inodes without a name that are open, and files that are being cut. Who finds one after a
//! crash frees it, or ends cutting it (Documentation/filesystems/ext4/orphan.rst of Linux).
//!
//! They are a list from the superblock on, in which each inode has the next one in place of the time of
//! its deletion.

use std::collections::HashSet;

use super::Ext4;
use super::error::{Error, Result};
use super::inode::Inode;
use crate::block::BlockDevice;
use crate::files::FileType;

impl<D: BlockDevice> Ext4<D> {
    /// Adds an inode, whose changes it keeps.
    pub(super) fn add_orphan(&mut self, inode: &mut Inode) -> Result<()> {
        if !self.orphans.contains(&inode.number) {
            inode.set_deleted(self.superblock.last_orphan());
            self.superblock.set_last_orphan(inode.number);
            self.orphans.push(inode.number);
        }
        self.store(inode)
    }

    /// Takes an inode out, and keeps its changes.
    pub(super) fn remove_orphan(&mut self, inode: &mut Inode) -> Result<()> {
        if let Some(at) = self
            .orphans
            .iter()
            .position(|orphan| *orphan == inode.number)
        {
            let next = at.checked_sub(1).map_or(0, |before| self.orphans[before]);
            match self.orphans.get(at + 1).copied() {
                Some(after) => {
                    let mut after = self.load(after)?;
                    after.set_deleted(next);
                    self.store(&after)?;
                }
                None => self.superblock.set_last_orphan(next),
            }
            self.orphans.remove(at);
            inode.set_deleted(0);
        }
        self.store(inode)
    }

    /// Reads the list of what was open, or was to be cut, at the last crash.
    pub(super) fn load_orphans(&mut self) -> Result<()> {
        let mut seen = HashSet::new();
        let mut next = self.superblock.last_orphan();
        while next != 0 {
            if !seen.insert(next) || next < self.superblock.first_inode() {
                return Err(Error::Damaged("list of orphans"));
            }
            self.orphans.insert(0, next);
            next = self.load(next)?.deleted();
        }
        Ok(())
    }

    /// Frees what has no name, and cuts what is to be cut.
    pub(super) fn end_orphans(&mut self) -> Result<()> {
        for number in self.orphans.clone() {
            let inode = self.load(number)?;
            match inode.links() {
                0 => self.free_orphan(number)?,
                _ => self.cut(number)?,
            }
        }
        Ok(())
    }

    /// Cuts a file to its size, in as many transactions as it needs.
    pub(super) fn cut(&mut self, number: u32) -> Result<()> {
        while self.attempt(|fs| fs.cut_step(number))? {}
        Ok(())
    }

    /// Frees an inode without names, with all that it has.
    pub(super) fn free_orphan(&mut self, number: u32) -> Result<()> {
        let has_blocks = self.load(number)?.has_blocks();
        while has_blocks && self.attempt(|fs| fs.shorten(number, 0))? {}
        self.attempt(|fs| {
            let mut inode = fs.load(number)?;
            fs.free_attributes(&mut inode)?;
            fs.remove_orphan(&mut inode)?;
            let is_directory = inode.kind() == Some(FileType::Directory);
            inode.set_freed();
            fs.store(&inode)?;
            fs.free_inode(number, is_directory)
        })
    }
}
