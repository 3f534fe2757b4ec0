//! The journal, in the format of Linux' jbd2: transactions of changed metadata, which are complete on the
//! device before they are written to their places. Linux, e2fsck and [`Ext4::mount`](super::Ext4::mount)
//! replay it after a crash.
//!
//! A commit is synchronous: data first, then the transaction, a flush, its commit block, a flush; then
//! the metadata go to their places. There they have to be only before their room in the journal is used
//! again: then, too, the device is flushed.

mod commit;
mod format;
mod replay;

use self::format::{Format, Superblock};
use super::Ext4;
use super::cache::Cache;
use super::error::{Error, Result};
use super::extent::Run;
use crate::block::BlockDevice;

/// The journal of a mounted file system.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// Its blocks on the device.
    blocks: Vec<u64>,
    format: Format,
    /// The first and the last block, which are in a circle, and the block behind the last.
    first: u32,
    end: u32,
    /// Where the next transaction begins, and the oldest that must not be overwritten.
    head: u32,
    tail: u32,
    /// Number of the next transaction.
    sequence: u32,
}

impl Journal {
    /// Blocks of the circle.
    fn length(&self) -> u32 {
        self.end - self.first
    }

    /// Most changed blocks of a transaction that is to be committed before the next change.
    pub(super) fn transaction_max(&self) -> usize {
        self.length() as usize / 4
    }

    /// Returns the block behind another one.
    fn after(&self, at: u32) -> u32 {
        if at + 1 == self.end {
            self.first
        } else {
            at + 1
        }
    }

    fn free(&self) -> u32 {
        let used = (self.head + self.length() - self.tail) % self.length();
        self.length() - 1 - used
    }

    fn block(&self, at: u32) -> Result<u64> {
        let block = self.blocks.get(at as usize).copied();
        block.ok_or(Error::Damaged("a block beyond the journal"))
    }

    fn superblock<D: BlockDevice>(&self, cache: &mut Cache<D>) -> Result<Superblock> {
        let bytes = cache.read(self.block(0)?)?;
        Superblock::parse(&bytes, cache.block_size(), self.blocks.len())
    }

    fn write_superblock<D: BlockDevice>(
        &self,
        cache: &mut Cache<D>,
        superblock: &Superblock,
    ) -> Result<()> {
        use zerocopy::IntoBytes;
        let block = self.block(0)?;
        let mut bytes = cache.read(block)?;
        bytes[..size_of::<Superblock>()].copy_from_slice(superblock.as_bytes());
        cache.write(block, &bytes)?;
        cache.flush()
    }

    /// Says on the device where the journal begins, after what is before it has reached its place.
    pub(super) fn checkpoint<D: BlockDevice>(&mut self, cache: &mut Cache<D>) -> Result<()> {
        cache.flush()?;
        let mut superblock = self.superblock(cache)?;
        superblock.set_start(self.head, self.sequence);
        self.write_superblock(cache, &superblock)?;
        self.tail = self.head;
        Ok(())
    }

    /// Empties it, so that nobody has to replay it.
    pub(super) fn close<D: BlockDevice>(&mut self, cache: &mut Cache<D>) -> Result<()> {
        cache.flush()?;
        let mut superblock = self.superblock(cache)?;
        superblock.set_start(0, self.sequence);
        self.write_superblock(cache, &superblock)
    }

    /// Begins to use it, when it was replayed: from the first block on, as a transaction of that number.
    pub(super) fn start<D: BlockDevice>(
        &mut self,
        cache: &mut Cache<D>,
        (is_wide, has_checksums): (bool, bool),
    ) -> Result<()> {
        let mut superblock = self.superblock(cache)?;
        superblock.set_format(is_wide, has_checksums);
        superblock.set_start(self.first, self.sequence);
        self.write_superblock(cache, &superblock)?;
        self.format = superblock.format();
        (self.head, self.tail) = (self.first, self.first);
        Ok(())
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Finds the journal, and replays it. Returns whether there was anything to replay: then all that
    /// was read before is to be read again.
    pub(super) fn open_journal(&mut self) -> Result<bool> {
        let inode = self.load(self.superblock.journal_inode())?;
        let count = inode.size() / self.superblock.block_size() as u64;
        if inode.size() > self.size_max() || count > self.superblock.blocks() {
            return Err(Error::Damaged("size of the journal"));
        }
        let mut blocks = Vec::new();
        while (blocks.len() as u64) < count {
            let Run::Extent(extent) = self.run(&inode, blocks.len() as u32)? else {
                return Err(Error::Damaged("a hole in the journal"));
            };
            let skipped = u64::from(blocks.len() as u32 - extent.logical);
            blocks.extend(extent.physical + skipped..extent.physical + u64::from(extent.length));
        }
        let mut journal = Journal {
            blocks,
            ..Journal::default()
        };
        let superblock = journal.superblock(&mut self.cache)?;
        journal.format = superblock.format();
        (journal.first, journal.end) = (superblock.first.get(), superblock.length.get());
        (journal.head, journal.tail) = (journal.first, journal.first);
        journal.sequence = superblock.sequence.get().max(1);
        let start = superblock.start.get();
        if start != 0 {
            journal.replay(&mut self.cache, start, self.superblock.blocks())?;
        }
        self.journal = journal;
        Ok(start != 0)
    }
}
