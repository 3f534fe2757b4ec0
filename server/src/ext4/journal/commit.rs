//! Writing transactions.

use std::collections::BTreeSet;

use super::Journal;
use super::format::{Tag, needs_escape};
use crate::block::BlockDevice;
use crate::ext4::cache::Cache;
use crate::ext4::error::{Error, Result};
use crate::files::Time;

/// Blocks that are written one after the other: neighbours on the device at once.
struct Writer<'a, D> {
    cache: &'a mut Cache<D>,
    start: u64,
    bytes: Vec<u8>,
}

impl<D: BlockDevice> Writer<'_, D> {
    fn put(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        /// Most bytes that are written at once.
        const RUN: usize = 256 << 10;
        let next = self.start + (self.bytes.len() / self.cache.block_size()) as u64;
        if block != next || self.bytes.len() >= RUN {
            self.end()?;
            self.start = block;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if !self.bytes.is_empty() {
            self.cache.write(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

impl Journal {
    /// Commits what the cache has of changed metadata, and that blocks were freed that had metadata
    /// before. All data are written first.
    ///
    /// # Errors
    /// Those of the device. Then nothing more may be committed: what is on it is not known.
    pub(in crate::ext4) fn commit<D: BlockDevice>(
        &mut self,
        cache: &mut Cache<D>,
        revoked: &BTreeSet<u64>,
    ) -> Result<()> {
        cache.write_data()?;
        let block_size = cache.block_size();
        let blocks: Vec<u64> = cache.metadata().iter().copied().collect();
        let descriptors = blocks.len().div_ceil(self.format.tags(block_size));
        let revocations = revoked.len().div_ceil(self.format.revocations(block_size));
        let needed = (blocks.len() + descriptors + revocations + 1) as u32;
        if needed > self.free() {
            self.checkpoint(cache)?;
        }
        if needed > self.free() {
            return Err(Error::Damaged("a journal that is too small"));
        }
        self.log(cache, &blocks, revoked)?;
        cache.flush()?;
        let seconds = Time::now().seconds.cast_unsigned();
        let commit = self.format.commit(self.sequence, seconds, block_size);
        cache.write(self.block(self.head)?, &commit)?;
        cache.flush()?;
        self.head = self.after(self.head);
        self.sequence = self.sequence.wrapping_add(1);
        cache.write_metadata()
    }

    /// Writes all of a transaction but its commit block.
    fn log<D: BlockDevice>(
        &mut self,
        cache: &mut Cache<D>,
        blocks: &[u64],
        revoked: &BTreeSet<u64>,
    ) -> Result<()> {
        let block_size = cache.block_size();
        let mut writer = Writer {
            cache,
            start: 0,
            bytes: Vec::new(),
        };
        let revoked: Vec<u64> = revoked.iter().copied().collect();
        for part in revoked.chunks(self.format.revocations(block_size)) {
            let block = self.format.revocation(self.sequence, part, block_size);
            self.append(&mut writer, &block)?;
        }
        for part in blocks.chunks(self.format.tags(block_size)) {
            self.log_part(&mut writer, part)?;
        }
        writer.end()
    }

    /// Writes a descriptor block and what it describes.
    fn log_part<D: BlockDevice>(&mut self, writer: &mut Writer<'_, D>, part: &[u64]) -> Result<()> {
        let block_size = writer.cache.block_size();
        let (mut tags, mut content) = (Vec::new(), Vec::new());
        for &block in part {
            let bytes = writer.cache.get(block)?;
            let is_escaped = needs_escape(bytes);
            let at = content.len();
            content.extend_from_slice(bytes);
            if is_escaped {
                content[at..at + 4].fill(0);
            }
            tags.push(Tag {
                block,
                is_escaped,
                checksum: self.format.block_checksum(self.sequence, &content[at..]),
            });
        }
        let descriptor = self.format.descriptor(self.sequence, &tags, block_size);
        self.append(writer, &descriptor)?;
        content
            .chunks_exact(block_size)
            .try_for_each(|bytes| self.append(writer, bytes))
    }

    fn append<D: BlockDevice>(&mut self, writer: &mut Writer<'_, D>, bytes: &[u8]) -> Result<()> {
        writer.put(self.block(self.head)?, bytes)?;
        self.head = self.after(self.head);
        Ok(())
    }
}
