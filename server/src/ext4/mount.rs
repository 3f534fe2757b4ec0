//! Mounting and unmounting.

use std::collections::BTreeSet;

use std::time::Instant;

use hashbrown::HashMap;

use super::Ext4;
use super::allocate::Freed;
use super::cache::{Cache, Kind};
use super::error::{Error, Result};
use super::group;
use super::journal::Journal;
use super::mapped::MappedFiles;
use super::read_ahead::ReadAhead;
use super::superblock::{OFFSET, SIZE, Superblock};
use crate::block::BlockDevice;
use crate::files::Time;

impl<D: BlockDevice> Ext4<D> {
    /// Mounts a file system, and repairs it after a crash: replays the journal, and frees what was open
    /// without a name. It caches at most about as many bytes.
    ///
    /// # Errors
    /// [`Error::NoExt4`], [`Error::Unsupported`]: nothing was written then. [`Error::Device`],
    /// [`Error::Damaged`].
    pub fn mount(mut device: D, cache_bytes: usize) -> std::result::Result<Self, Error> {
        let superblock = read_superblock(&mut device)?;
        let mut cache = Cache::new(device, superblock.block_size(), cache_bytes);
        let mut fs = Self {
            // These are checked when the journal is replayed.
            groups: group::load(&mut cache, &superblock)?,
            read_ahead: ReadAhead::new(cache.read_ahead_max()),
            cache,
            superblock,
            journal: Journal::default(),
            orphans: Vec::new(),
            freed: Freed::default(),
            revoked: BTreeSet::new(),
            began: None,
            stopped: None,
            recent: None,
            inodes: HashMap::new(),
            mapped: MappedFiles::default(),
            committed: Instant::now(),
        };
        if fs.open_journal()? {
            fs = fs.reload(cache_bytes)?;
        }
        for (number, group) in (0..).zip(&fs.groups) {
            group.check(number, &fs.superblock)?;
        }
        fs.begin_use()?;
        fs.load_orphans()?;
        fs.end_orphans()?;
        fs.commit()?;
        Ok(fs)
    }

    /// Reads all again that was read before the journal was replayed.
    fn reload(self, cache_bytes: usize) -> Result<Self> {
        let mut device = self.cache.into_device();
        let superblock = read_superblock(&mut device)?;
        let mut cache = Cache::new(device, superblock.block_size(), cache_bytes);
        Ok(Self {
            groups: group::load(&mut cache, &superblock)?,
            read_ahead: ReadAhead::new(cache.read_ahead_max()),
            cache,
            superblock,
            recent: None,
            inodes: HashMap::new(),
            mapped: MappedFiles::default(),
            committed: Instant::now(),
            ..self
        })
    }

    /// Says on the device that the file system is in use.
    fn begin_use(&mut self) -> Result<()> {
        self.superblock.set_needs_recovery(true);
        self.superblock.set_mounted(Time::now().seconds);
        self.write_superblock()?;
        let format = (self.superblock.is_wide(), self.superblock.has_checksums());
        self.journal.start(&mut self.cache, format)
    }

    /// Unmounts it: afterwards there is nothing to replay. Files without a name are freed. Returns the
    /// device.
    ///
    /// # Errors
    /// [`Error::Device`]; then the next mount replays the journal.
    pub fn unmount(mut self) -> std::result::Result<D, Error> {
        if self.stopped.is_none() {
            self.unmap_all()?;
            self.end_orphans()?;
            self.commit()?;
            self.journal.close(&mut self.cache)?;
            self.superblock.set_needs_recovery(false);
            self.write_superblock()?;
        }
        Ok(self.cache.into_device())
    }

    /// Writes the superblock to its place, without the journal.
    fn write_superblock(&mut self) -> Result<()> {
        let block = OFFSET / self.superblock.block_size() as u64;
        self.store_superblock()?;
        let bytes = self.cache.get(block)?.to_vec();
        self.cache.forget(block);
        self.cache.write(block, &bytes)?;
        self.cache.flush()
    }

    /// Writes the superblock to the cache, if it has changed.
    pub(super) fn store_superblock(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.superblock.is_dirty) {
            return Ok(());
        }
        let size = self.superblock.block_size() as u64;
        let at = (OFFSET % size) as usize;
        let bytes = self.cache.modify(OFFSET / size, Kind::Metadata)?;
        bytes[at..at + SIZE].copy_from_slice(self.superblock.bytes(Time::now().seconds));
        Ok(())
    }
}

fn read_superblock<D: BlockDevice>(device: &mut D) -> Result<Superblock> {
    let size = device.block_size();
    if size > 4096 {
        return Err(Error::Unsupported("a device with larger blocks".into()));
    }
    let (start, end) = (OFFSET as usize, OFFSET as usize + SIZE);
    let mut bytes = vec![0; end.next_multiple_of(size)];
    if device.block_count() < (bytes.len() / size) as u64 {
        return Err(Error::NoExt4);
    }
    device.read(0, &mut bytes)?;
    let device_bytes = device.block_count().saturating_mul(size as u64);
    let superblock = Superblock::parse(&bytes[start..end], device_bytes)?;
    match superblock.block_size() >= size {
        true => Ok(superblock),
        false => Err(Error::Unsupported(
            "blocks smaller than the device's".into(),
        )),
    }
}
