//! Bitmaps of used blocks and inodes (Documentation/filesystems/ext4/bitmaps.rst of Linux).

use super::Ext4;
use super::cache::Kind;
use super::error::{Error, Result};
use super::group::Bitmap;
use crate::block::BlockDevice;

/// Whether a bit is set.
pub(super) fn is_set(bits: &[u8], at: usize) -> bool {
    bits[at / 8] >> (at % 8) & 1 != 0
}

/// Sets bits, or clears them. Returns whether all were the opposite before.
pub(super) fn set(bits: &mut [u8], range: std::ops::Range<usize>, value: bool) -> bool {
    let mut were_opposite = true;
    for at in range {
        were_opposite &= is_set(bits, at) != value;
        match value {
            true => bits[at / 8] |= 1 << (at % 8),
            false => bits[at / 8] &= !(1 << (at % 8)),
        }
    }
    were_opposite
}

/// Returns the first run of at most `want` bits that are clear in both bitmaps.
pub(super) fn find_clear(
    bits: &[u8],
    also: Option<&[u8]>,
    range: std::ops::Range<usize>,
    want: usize,
) -> Option<std::ops::Range<usize>> {
    let byte = |at: usize| bits[at] | also.map_or(0, |also| also[at]);
    let is_clear = |at: usize| byte(at / 8) >> (at % 8) & 1 == 0;
    let mut start = range.start;
    while start < range.end && !is_clear(start) {
        start = match byte(start / 8) {
            0xff => (start / 8 + 1) * 8,
            _ => start + 1,
        };
    }
    let limit = range.end.min(start.saturating_add(want));
    let end = (start..limit).find(|at| !is_clear(*at)).unwrap_or(limit);
    (start < end).then_some(start..end)
}

impl<D: BlockDevice> Ext4<D> {
    /// Returns the bits of a group's bitmap that stand for something.
    pub(super) fn bits(&self, group: u32, which: Bitmap) -> usize {
        let blocks = self.superblock.blocks() - self.group_start(group);
        match which {
            Bitmap::Blocks => blocks.min(self.superblock.blocks_per_group().into()) as usize,
            Bitmap::Inodes => self.superblock.inodes_per_group() as usize,
        }
    }

    /// Returns the first block of a group.
    pub(super) fn group_start(&self, group: u32) -> u64 {
        let before = u64::from(group) * u64::from(self.superblock.blocks_per_group());
        self.superblock.first_block() + before
    }

    /// Returns the block of a bitmap, which is written first if it never was.
    pub(super) fn bitmap(&mut self, group: u32, which: Bitmap) -> Result<u64> {
        let block = self.group(group)?.bitmap(which);
        if self.group(group)?.is_unwritten(which) {
            self.write_bitmap(group, which)?;
            self.group(group)?.set_written(which);
        } else {
            self.check_bitmap(group, which)?;
        }
        Ok(block)
    }

    /// Writes the first bitmap of a group that was not used so far.
    fn write_bitmap(&mut self, number: u32, which: Bitmap) -> Result<()> {
        let bits = self.bits(number, which);
        let (start, end) = (
            self.group_start(number),
            self.group_start(number) + bits as u64,
        );
        let used = match which {
            Bitmap::Blocks => self.metadata_of(number)?,
            Bitmap::Inodes => Vec::new(),
        };
        let block = self.group(number)?.bitmap(which);
        let bytes = self.cache.fresh(block, Kind::Metadata)?;
        // What stands for nothing is set.
        set(bytes, bits..bytes.len() * 8, true);
        for used in used.into_iter().filter(|used| (start..end).contains(used)) {
            set(
                bytes,
                (used - start) as usize..(used - start) as usize + 1,
                true,
            );
        }
        Ok(())
    }

    /// Returns the blocks of a group's own metadata, wherever they are.
    fn metadata_of(&mut self, number: u32) -> Result<Vec<u64>> {
        let start = self.group_start(number);
        let backup = self.superblock.blocks_at_start(number);
        let table = self.superblock.inodes_per_group() as usize * self.superblock.inode_size();
        let table = (table / self.superblock.block_size()) as u64;
        let group = self.group(number)?;
        let inodes = group.inode_table();
        let bitmaps = [group.bitmap(Bitmap::Blocks), group.bitmap(Bitmap::Inodes)];
        Ok((start..start + backup)
            .chain(inodes..inodes + table)
            .chain(bitmaps)
            .collect())
    }
}

/// Returns a checked index of a bit as of a range of blocks in a group.
pub(super) fn checked(at: u64, bits: usize) -> Result<usize> {
    usize::try_from(at)
        .ok()
        .filter(|at| *at < bits)
        .ok_or(Error::Damaged("a bit beyond its bitmap"))
}

#[cfg(test)]
mod tests {
    use super::{find_clear, is_set, set};

    #[test]
    fn runs_of_clear_bits() {
        let mut bits = [0xff, 0b1000_0111, 0xff, 0];
        assert_eq!(find_clear(&bits, None, 0..32, 100), Some(11..15));
        assert_eq!(find_clear(&bits, None, 0..32, 2), Some(11..13));
        assert_eq!(find_clear(&bits, None, 12..32, 9), Some(12..15));
        assert_eq!(find_clear(&bits, None, 15..24, 9), None);
        let also = [0, 0b0001_1000, 0, 0xfe];
        assert_eq!(find_clear(&bits, Some(&also), 0..32, 9), Some(13..15));
        assert_eq!(find_clear(&bits, Some(&also), 15..32, 9), Some(24..25));
        assert!(set(&mut bits, 11..13, true) && !set(&mut bits, 11..14, true));
        assert!(is_set(&bits, 13) && !is_set(&bits, 14));
    }
}
