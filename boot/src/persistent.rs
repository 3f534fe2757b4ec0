//! The head of persistent memory that Linux maps with DAX.
//!
//! DAX needs page structures for the memory. Linux allocates them for NFIT ranges only if an
//! information block at the start of the range says so, and that they are in the node's own memory.
//!
//! Source: `struct nd_pfn_sb` in drivers/nvdimm/pfn.h, `nd_pfn_validate()` in
//! drivers/nvdimm/pfn_devs.c and `nd_fletcher64()` in drivers/nvdimm/core.c.

use crate::chunk::PAGE;

/// Offset of the contents, which are the disk, in bytes.
pub const HEAD_SIZE: u64 = 2 * PAGE;

/// Offset and size of the information block.
const BLOCK_OFFSET: usize = PAGE as usize;
const BLOCK_SIZE: usize = PAGE as usize;
const SIGNATURE: [u8; 16] = *b"NVDIMM_PFN_INFO\0";
/// Required, but its value is not used.
const UUID: [u8; 16] = *b"insula memory\0\0\0";
const VERSION: (u16, u16) = (1, 4);
/// `PFN_MODE_RAM`: page structures are in normal memory.
const MODE: u32 = 1;
/// Size of a page structure in bytes; Linux' are not larger.
const PAGE_STRUCTURE_SIZE: u16 = 64;
/// Offset of the block's checksum.
const CHECKSUM_OFFSET: usize = BLOCK_SIZE - 8;

/// The head of persistent memory of `size` bytes in total: whole pages, more than [`HEAD_SIZE`].
#[must_use]
pub fn head(size: u64) -> Vec<u8> {
    let mut head = vec![0; HEAD_SIZE as usize];
    let block = &mut head[BLOCK_OFFSET..];
    let pages = size.saturating_sub(HEAD_SIZE) / PAGE;
    let page_size = PAGE as u32;
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &SIGNATURE);
    put(16, &UUID);
    put(52, &VERSION.0.to_le_bytes());
    put(54, &VERSION.1.to_le_bytes());
    put(56, &HEAD_SIZE.to_le_bytes());
    put(64, &pages.to_le_bytes());
    put(72, &MODE.to_le_bytes());
    // Alignment of mappings, page size.
    put(84, &page_size.to_le_bytes());
    put(88, &page_size.to_le_bytes());
    put(92, &PAGE_STRUCTURE_SIZE.to_le_bytes());
    let sum = fletcher64(block).to_le_bytes();
    block[CHECKSUM_OFFSET..].copy_from_slice(&sum);
    head
}

/// The Fletcher checksum of 32-bit words.
fn fletcher64(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks();
    let (low, high) = words.iter().fold((0_u32, 0_u32), |(low, high), word| {
        let low = low.wrapping_add(u32::from_le_bytes(*word));
        (low, high.wrapping_add(low))
    });
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_as_fletcher() {
        let words = [1_u32, u32::MAX, 7];
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        // Sums: 1, 0, 7; of these: 1, 1, 8.
        assert_eq!(fletcher64(&bytes), 8 << 32 | 7);
    }

    #[test]
    fn head_has_the_offset_of_the_contents() {
        let head = head(4 << 20);
        assert_eq!(head.len() as u64, HEAD_SIZE);
        assert!(head[..BLOCK_OFFSET].iter().all(|&byte| byte == 0));
        let block = &head[BLOCK_OFFSET..];
        assert_eq!(block[..15], *b"NVDIMM_PFN_INFO");
        let at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        assert_eq!((at(56), at(64)), (HEAD_SIZE, 1022));
        let mut without = block.to_vec();
        without[CHECKSUM_OFFSET..].fill(0);
        assert_eq!(at(CHECKSUM_OFFSET), fletcher64(&without));
    }
}
