//! The cache: blocks of the device, of which those that were changed are written later.
//!
//! Blocks with data of files are written whenever there are many, and before the transaction that refers
//! to them (`data=ordered`). Blocks with metadata are written by the journal alone. All others can be
//! dropped, and are when there are more than the capacity.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};

use hashbrown::HashMap;
use lru::LruCache;

use super::error::{Error, Result};
use super::read_ahead::WINDOW_MAX;
use crate::block::BlockDevice;
use crate::pages::{Block, PagePool};

/// What a block is changed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data of a file.
    Data,
    /// All else.
    Metadata,
}

#[derive(Debug)]
struct Slot {
    bytes: Block,
    /// Its checksum was right when it was read, or was set since.
    is_verified: bool,
}

/// Blocks of the file system's size.
#[derive(Debug)]
pub(super) struct Cache<D> {
    device: D,
    /// The memory of the blocks.
    pages: PagePool,
    block_size: usize,
    /// Most blocks, if they can be dropped.
    capacity: usize,
    slots: HashMap<u64, Slot>,
    /// The clean ones, by their last use.
    clean: LruCache<u64, ()>,
    data: BTreeSet<u64>,
    metadata: BTreeSet<u64>,
    /// Those that programs have mapped, and a hash of their content as it was written last.
    pinned: BTreeMap<u64, u64>,
    /// Counts changes.
    changes: u64,
}

impl<D: BlockDevice> Cache<D> {
    /// The block size must be a multiple of the device's.
    pub(super) fn new(device: D, block_size: usize, bytes: usize) -> Self {
        Self {
            device,
            pages: PagePool::new(bytes),
            block_size,
            capacity: (bytes / block_size).max(64),
            slots: HashMap::new(),
            clean: LruCache::unbounded(),
            data: BTreeSet::new(),
            metadata: BTreeSet::new(),
            pinned: BTreeMap::new(),
            changes: 0,
        }
    }

    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }

    /// Returns the memory of the blocks.
    pub(super) fn pages(&self) -> &PagePool {
        &self.pages
    }

    /// Number of changes so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Drops all blocks. Returns the device.
    pub(super) fn into_device(self) -> D {
        self.device
    }

    /// Blocks of metadata that are not in the journal yet.
    pub(super) fn metadata(&self) -> &BTreeSet<u64> {
        &self.metadata
    }

    /// Whether anything is not on the device yet.
    pub(super) fn is_dirty(&self) -> bool {
        !self.data.is_empty() || !self.metadata.is_empty()
    }

    /// Returns a block.
    pub(super) fn get(&mut self, block: u64) -> Result<&[u8]> {
        self.load(block)?;
        self.touch(block);
        Ok(&self.slot(block)?.bytes)
    }

    /// Returns a block, if it is cached.
    pub(super) fn cached(&self, block: u64) -> Option<&[u8]> {
        self.slots.get(&block).map(|slot| &*slot.bytes)
    }

    /// Most blocks that are read ahead.
    pub(super) fn read_ahead_max(&self) -> u32 {
        (WINDOW_MAX / self.block_size).min(self.capacity / 4) as u32
    }

    /// Reads blocks that follow each other, as far as they are not cached, by one access of the device.
    pub(super) fn read_ahead(&mut self, first: u64, count: u32) -> Result<()> {
        let blocks = first..first + u64::from(count);
        let missing = blocks.take_while(|block| !self.slots.contains_key(block));
        let mut bytes = vec![0; missing.count() * self.block_size];
        self.device.read(self.place(first)?, &mut bytes)?;
        for (block, bytes) in (first..).zip(bytes.chunks(self.block_size)) {
            let mut own = self.pages.block(self.block_size);
            own.copy_from_slice(bytes);
            self.insert(block, own);
        }
        Ok(())
    }

    /// Whether a block that is cached needs no check of its checksum.
    pub(super) fn is_verified(&self, block: u64) -> bool {
        self.slots.get(&block).is_some_and(|slot| slot.is_verified)
    }

    /// Notes that a block needs no check as long as it is cached.
    pub(super) fn set_verified(&mut self, block: u64) {
        if let Some(slot) = self.slots.get_mut(&block) {
            slot.is_verified = true;
        }
    }

    /// Returns a block to be changed.
    pub(super) fn modify(&mut self, block: u64, kind: Kind) -> Result<&mut [u8]> {
        self.load(block)?;
        self.mark(block, kind)?;
        Ok(&mut self.slot(block)?.bytes)
    }

    /// Returns a block full of zeros in place of what is on the device.
    pub(super) fn fresh(&mut self, block: u64, kind: Kind) -> Result<&mut [u8]> {
        let bytes = self.overwrite(block, kind)?;
        bytes.fill(0);
        Ok(bytes)
    }

    /// Returns a block of which the caller writes every byte: others may read it meanwhile, and find no zeros there.
    pub(super) fn overwrite(&mut self, block: u64, kind: Kind) -> Result<&mut [u8]> {
        if !self.slots.contains_key(&block) {
            let bytes = self.pages.block(self.block_size);
            self.insert(block, bytes);
        }
        self.mark(block, kind)?;
        let slot = self.slot(block)?;
        slot.is_verified = true;
        Ok(&mut slot.bytes)
    }

    /// Keeps a block of data where it is: programs read and write it without a word.
    pub(super) fn pin(&mut self, block: u64) -> Result<()> {
        self.load(block)?;
        self.clean.pop(&block);
        if !self.pinned.contains_key(&block) {
            let digest = digest(&self.slot(block)?.bytes);
            self.pinned.insert(block, digest);
        }
        Ok(())
    }

    /// Ends that. What was written there is dirty.
    pub(super) fn unpin(&mut self, blocks: &BTreeSet<u64>) {
        self.note_stores();
        for block in blocks {
            self.pinned.remove(block);
            self.touch(*block);
        }
    }

    /// Whether any block is pinned.
    pub(super) fn has_pinned(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// Notes which pinned blocks programs have written.
    pub(super) fn note_stores(&mut self) {
        for (block, before) in &mut self.pinned {
            let Some(slot) = self.slots.get(block) else {
                continue;
            };
            let now = digest(&slot.bytes);
            if std::mem::replace(before, now) != now {
                self.data.insert(*block);
            }
        }
    }

    /// Drops a block that nothing refers to any more.
    pub(super) fn forget(&mut self, block: u64) {
        self.pinned.remove(&block);
        self.data.remove(&block);
        self.metadata.remove(&block);
        self.clean.pop(&block);
        self.slots.remove(&block);
    }

    /// Writes all data.
    pub(super) fn write_data(&mut self) -> Result<()> {
        let blocks = std::mem::take(&mut self.data);
        self.write_all(&blocks)
    }

    /// Writes all metadata to their places. They must be in the journal.
    pub(super) fn write_metadata(&mut self) -> Result<()> {
        let blocks = std::mem::take(&mut self.metadata);
        self.write_all(&blocks)
    }

    /// Writes blocks to the device, of which the cache knows nothing.
    pub(super) fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        let place = self.place(block)?;
        Ok(self.device.write(place, bytes)?)
    }

    /// Reads a block from the device.
    pub(super) fn read(&mut self, block: u64) -> Result<Block> {
        let place = self.place(block)?;
        let mut bytes = self.pages.block(self.block_size);
        self.device.read(place, &mut bytes)?;
        Ok(bytes)
    }

    /// Has all that was written survive.
    pub(super) fn flush(&mut self) -> Result<()> {
        Ok(self.device.flush()?)
    }

    fn place(&self, block: u64) -> Result<u64> {
        let ratio = (self.block_size / self.device.block_size()) as u64;
        let place = block.checked_mul(ratio);
        place.ok_or(Error::Damaged("a block beyond the device"))
    }

    fn slot(&mut self, block: u64) -> Result<&mut Slot> {
        let slot = self.slots.get_mut(&block);
        slot.ok_or(Error::Damaged("a block that was dropped"))
    }

    fn load(&mut self, block: u64) -> Result<()> {
        if !self.slots.contains_key(&block) {
            let bytes = self.read(block)?;
            self.insert(block, bytes);
        }
        Ok(())
    }

    fn insert(&mut self, block: u64, bytes: Block) {
        while self.slots.len() >= self.capacity {
            let Some((oldest, ())) = self.clean.pop_lru() else {
                break;
            };
            self.slots.remove(&oldest);
        }
        self.slots.insert(
            block,
            Slot {
                bytes,
                is_verified: false,
            },
        );
        self.touch(block);
    }

    /// Makes a clean block the youngest.
    fn touch(&mut self, block: u64) {
        let is_clean = self.clean.get(&block).is_some() || self.pinned.contains_key(&block);
        if !is_clean && !self.data.contains(&block) && !self.metadata.contains(&block) {
            self.clean.put(block, ());
        }
    }

    /// Makes a block dirty, after others were written if there are too many.
    fn mark(&mut self, block: u64, kind: Kind) -> Result<()> {
        self.changes += 1;
        if kind == Kind::Data && self.data.len() >= self.capacity / 2 {
            self.write_data()?;
        }
        self.clean.pop(&block);
        match kind {
            Kind::Metadata => self.metadata.insert(block),
            Kind::Data => self.data.insert(block),
        };
        Ok(())
    }

    /// Writes blocks, after which they are clean.
    fn write_all(&mut self, blocks: &BTreeSet<u64>) -> Result<()> {
        let mut pieces = Vec::with_capacity(blocks.len());
        for &block in blocks {
            let slot = self.slots.get(&block);
            let slot = slot.ok_or(Error::Damaged("a lost block"))?;
            pieces.push((self.place(block)?, &*slot.bytes));
        }
        self.device.write_each(&pieces)?;
        blocks.iter().for_each(|block| self.touch(*block));
        Ok(())
    }
}

fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
