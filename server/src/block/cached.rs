//! A block device with a cache in front of it: what is written goes to the device later.
//!
//! [`BlockDevice`] allows that: nothing must be durable before a flush, and the order of writes is free until
//! then. If the device fails while something is written back, that stays in the cache, and the caller of that access
//! gets the error.

use std::collections::BTreeSet;

use hashbrown::HashMap;
use lru::LruCache;

use super::{Access, BlockDevice, DeviceError, check};

/// Bytes of a page of the cache, if the device's blocks are not larger.
const PAGE: usize = 4096;
/// Fewest pages of a cache.
const PAGES_MIN: usize = 16;
/// Most bytes that are read at once.
const RUN: usize = 256 << 10;

/// A device and its cache.
#[derive(Debug)]
pub struct CachedDevice<D> {
    device: D,
    page_bytes: usize,
    capacity: usize,
    pages: HashMap<u64, Box<[u8]>>,
    /// The clean ones, by their last use.
    clean: LruCache<u64, ()>,
    dirty: BTreeSet<u64>,
}

impl<D: BlockDevice> CachedDevice<D> {
    /// Caches at most so many bytes of a device.
    pub fn new(device: D, bytes: usize) -> Self {
        let page_bytes = PAGE.max(device.block_size());
        Self {
            device,
            page_bytes,
            capacity: (bytes / page_bytes).max(PAGES_MIN),
            pages: HashMap::new(),
            clean: LruCache::unbounded(),
            dirty: BTreeSet::new(),
        }
    }

    /// Blocks of a page.
    fn ratio(&self) -> u64 {
        (self.page_bytes / self.device.block_size()) as u64
    }

    /// Bytes of a page: the device's last may be shorter.
    fn page_length(&self, page: u64) -> usize {
        let left = self.device.block_count() - page * self.ratio();
        (left.min(self.ratio()) as usize) * self.device.block_size()
    }

    /// Visits the parts of pages that blocks lie in: the page, where the part begins in it, and its place among
    /// the blocks' bytes.
    fn parts(&self, block: u64, length: usize) -> Vec<(u64, usize, std::ops::Range<usize>)> {
        let (ratio, size) = (self.ratio(), self.device.block_size());
        let (mut page, mut offset) = (block / ratio, (block % ratio) as usize * size);
        let (mut done, mut parts) = (0, Vec::new());
        while done < length {
            let part = (self.page_bytes - offset).min(length - done);
            parts.push((page, offset, done..done + part));
            (page, offset, done) = (page + 1, 0, done + part);
        }
        parts
    }

    /// Reads the pages of a range that are not cached, neighbours at once.
    fn load(&mut self, pages: std::ops::RangeInclusive<u64>) -> Result<(), DeviceError> {
        let missing: Vec<_> = pages
            .filter(|page| !self.pages.contains_key(page))
            .collect();
        for run in missing.chunk_by(|one, next| one + 1 == *next) {
            for run in run.chunks(RUN / self.page_bytes.min(RUN)) {
                let lengths: Vec<_> = run.iter().map(|&page| self.page_length(page)).collect();
                let mut bytes = vec![0; lengths.iter().sum()];
                self.device.read(run[0] * self.ratio(), &mut bytes)?;
                let mut rest = &bytes[..];
                for (&page, length) in run.iter().zip(lengths) {
                    let (own, others) = rest.split_at(length);
                    self.insert(page, own.into());
                    rest = others;
                }
            }
        }
        Ok(())
    }

    fn insert(&mut self, page: u64, bytes: Box<[u8]>) {
        self.pages.insert(page, bytes);
        self.touch(page);
    }

    /// Makes a clean page the youngest.
    fn touch(&mut self, page: u64) {
        if !self.dirty.contains(&page) {
            self.clean.put(page, ());
        }
    }

    fn mark_dirty(&mut self, page: u64) {
        self.clean.pop(&page);
        self.dirty.insert(page);
    }

    /// Drops the oldest pages that are too many; dirty ones are written back when they are half of all.
    fn shrink(&mut self) -> Result<(), DeviceError> {
        if self.dirty.len() >= self.capacity / 2 {
            self.write_back()?;
        }
        while self.pages.len() > self.capacity {
            let Some((oldest, ())) = self.clean.pop_lru() else {
                break;
            };
            self.pages.remove(&oldest);
        }
        Ok(())
    }

    /// Writes all dirty pages to the device. If that fails they stay dirty.
    fn write_back(&mut self) -> Result<(), DeviceError> {
        let (ratio, pages) = (self.ratio(), &self.pages);
        let piece = |page: &u64| Some((page * ratio, &**pages.get(page)?));
        let pieces: Vec<_> = self.dirty.iter().filter_map(piece).collect();
        self.device.write_each(&pieces)?;
        for page in std::mem::take(&mut self.dirty) {
            self.touch(page);
        }
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for CachedDevice<D> {
    fn block_size(&self) -> usize {
        self.device.block_size()
    }

    fn block_count(&self) -> u64 {
        self.device.block_count()
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        check(self, Access::Read(block), to.len())?;
        // No more pages at once than there is room for.
        let most = self.capacity / 2 * self.page_bytes;
        for (number, to) in to.chunks_mut(most).enumerate() {
            let block = block + (number * most / self.block_size()) as u64;
            let parts = self.parts(block, to.len());
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
                return Ok(());
            };
            self.load(first.0..=last.0)?;
            for (page, offset, range) in parts {
                let length = range.len();
                if let Some(found) = self.pages.get(&page) {
                    to[range].copy_from_slice(&found[offset..offset + length]);
                }
                self.touch(page);
            }
            self.shrink()?;
        }
        Ok(())
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        check(self, Access::Write(block), from.len())?;
        for (page, offset, range) in self.parts(block, from.len()) {
            // All of a page needs not be read.
            match range.len() == self.page_length(page) {
                true => self.insert(page, from[range].into()),
                false => {
                    self.load(page..=page)?;
                    if let Some(found) = self.pages.get_mut(&page) {
                        found[offset..offset + range.len()].copy_from_slice(&from[range]);
                    }
                }
            }
            self.mark_dirty(page);
            self.shrink()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.write_back()?;
        self.device.flush()
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use proptest::prelude::*;

    use super::*;
    use crate::block::recorder::Recorder;

    /// Blocks of the device: the last page is not whole.
    const BLOCKS: u64 = 1003;
    const BLOCK: usize = 512;

    fn device() -> Recorder {
        let content: Vec<_> = (0..BLOCKS as usize * BLOCK)
            .map(|at| (at / 7) as u8)
            .collect();
        Recorder::new(&content)
    }

    /// A place and a number of blocks.
    fn range() -> impl Strategy<Value = (u64, usize)> {
        (0..BLOCKS).prop_flat_map(|at| (Just(at), 1..=((BLOCKS - at) as usize).min(200)))
    }

    proptest! {
        /// What is read is what was written last, and after a flush it is on the device, whatever of the
        /// rest is lost.
        #[test]
        fn it_is_as_the_device(
            calls in proptest::collection::vec((range(), 0..4_u8, any::<u8>()), 1..60),
            seed in any::<u64>(),
        ) {
            let recorder = device();
            let mut expected = recorder.content();
            let mut cached = CachedDevice::new(recorder.clone(), 20 * PAGE);
            let mut flushed = None;
            for ((at, count), what, fill) in calls {
                let bytes = at as usize * BLOCK..(at as usize + count) * BLOCK;
                match what {
                    0 | 1 => {
                        let mut read = vec![0; bytes.len()];
                        cached.read(at, &mut read).unwrap();
                        prop_assert_eq!(&read, &expected[bytes]);
                    }
                    2 => {
                        expected[bytes.clone()].fill(fill);
                        cached.write(at, &expected[bytes]).unwrap();
                        flushed = None;
                    }
                    _ => {
                        cached.flush().unwrap();
                        flushed = Some(recorder.events());
                    }
                }
            }
            if let Some(events) = flushed {
                prop_assert!(recorder.after_crash(events, BLOCK, seed) == expected);
            }
        }
    }

    #[test]
    fn what_cannot_be_written_back_stays() {
        let recorder = device();
        let mut cached = CachedDevice::new(recorder.clone(), 0);
        recorder.fail_after(0);
        cached.write(8, &[7; 4096]).unwrap();
        assert!(cached.flush().is_err());
        recorder.fail_after(u64::MAX);
        cached.flush().unwrap();
        assert_eq!(recorder.content()[4096..8192], [7; 4096]);
    }

    #[test]
    fn beyond_its_end_there_is_nothing() {
        let mut cached = CachedDevice::new(device(), 0);
        let error = cached.write(BLOCKS, &[0; BLOCK]).unwrap_err();
        assert_eq!(error.errno, Errno::ENXIO);
        assert_eq!(
            cached.read(0, &mut [0; 7]).unwrap_err().errno,
            Errno::EINVAL
        );
    }
}
