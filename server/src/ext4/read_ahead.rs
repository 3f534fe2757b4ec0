//! Reading ahead: of a file that is read in order more is read at once than was asked for, twice as much each time, up to a
//! window, as Linux does (`mm/readahead.c`). All of that is shared with the kernel at once.

use std::num::NonZeroUsize;

use lru::LruCache;
use nix::errno::Errno;

use super::Ext4;
use super::extent::{Extent, Run};
use super::inode::Inode;
use crate::block::BlockDevice;
use crate::files::FileType;
use crate::pages::PAGE;

/// Most files whose reads are followed.
const FILES_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// Most bytes that are read at once: Linux' usual `read_ahead_kb`.
pub(super) const WINDOW_MAX: usize = 128 << 10;
/// Blocks that are read with the first one of a file.
const BEGINNING: u32 = 4;

/// What was read of a file last: blocks from the first on, and how many were to be read.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: u32,
    count: u32,
}

/// Files that are being read.
#[derive(Debug)]
pub(super) struct ReadAhead {
    files: LruCache<u32, Window>,
    /// Most blocks that are read at once.
    most: u32,
}

impl ReadAhead {
    /// One of at most so many blocks at once.
    pub(super) fn new(most: u32) -> Self {
        Self {
            files: LruCache::new(FILES_MAX),
            most: most.max(1),
        }
    }

    /// Returns how many blocks of a file are to be read from one on, which has to be read.
    pub(super) fn window(&mut self, inode: u32, block: u32) -> u32 {
        let before = self.files.get(&inode).copied();
        let is_next = |before: &Window| {
            let passed = block.checked_sub(before.first);
            passed.is_some_and(|passed| (1..=before.count).contains(&passed))
        };
        let count = match before.filter(is_next) {
            Some(before) => before.count.saturating_mul(2),
            None if block == 0 => BEGINNING,
            None => 1,
        };
        let count = count.min(self.most);
        let first = block;
        self.files.put(inode, Window { first, count });
        count
    }
}

impl<D: BlockDevice> Ext4<D> {
    /// Reads a block of a file that is not cached, with others behind it if the file is read in order. What fails is read again
    /// when it is needed.
    pub(super) fn read_ahead(&mut self, inode: &Inode, extent: &Extent, logical: u32) {
        let window = self.read_ahead.window(inode.number, logical);
        let size = self.superblock.block_size() as u64;
        let end = extent.end().min(inode.size().div_ceil(size));
        let count = end.saturating_sub(logical.into()).min(window.into()) as u32;
        if count > 1 {
            let block = extent.physical + u64::from(logical - extent.logical);
            let _ = self.cache.read_ahead(block, count);
        }
    }

    /// Returns the block of a file that an offset begins, if it is cached.
    fn cached_block(&mut self, inode: &Inode, offset: u64) -> Option<&[u8]> {
        let (logical, at) = self.within(offset);
        match self.run(inode, logical) {
            Ok(Run::Extent(extent)) if at == 0 && !extent.is_unwritten => {
                let block = extent.physical + u64::from(logical - extent.logical);
                self.cache.cached(block)
            }
            _ => None,
        }
    }

    /// Has the kernel read the page of a file in which an offset lies, and what was read ahead behind it.
    pub(super) fn share_ahead(&mut self, file: u64, offset: u64, size: u64) {
        let Ok(inode) = self.inode_of(file, FileType::File, Errno::EINVAL) else {
            return;
        };
        let pages = self.cache.pages().clone();
        let first = offset - offset % PAGE as u64;
        for at in (first..size).step_by(PAGE).take(WINDOW_MAX / PAGE) {
            // The kernel has asked for the first one, whatever it was told before.
            let is_told = at != first && pages.is_shared(file, at / PAGE as u64);
            match self.cached_block(&inode, at).filter(|_| !is_told) {
                Some(bytes) => pages.share(bytes, (file, at), size),
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_order_is_read_ahead() {
        let mut ahead = ReadAhead::new(32);
        let mut next = 0;
        let windows: Vec<_> = (0..6)
            .map(|_| {
                let window = ahead.window(7, next);
                next += window;
                window
            })
            .collect();
        assert_eq!(windows, [4, 8, 16, 32, 32, 32]);
        // Some of it has gone again.
        assert_eq!(ahead.window(7, next - 5), 32);
    }

    #[test]
    fn what_is_read_here_and_there_is_not() {
        let mut ahead = ReadAhead::new(32);
        for block in [900, 3, 70, 5000, 1] {
            assert_eq!(ahead.window(7, block), 1);
        }
        assert_eq!(ahead.window(7, 2), 2);
        // Another file.
        assert_eq!(ahead.window(8, 3), 1);
        assert_eq!(ahead.window(7, 3), 4);
        assert_eq!(ahead.window(7, 3), 1);
    }
}
