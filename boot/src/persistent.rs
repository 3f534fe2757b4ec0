//! How persistent memory begins whose files Linux is to reach where they lie (DAX).
//!
//! Linux does so only with memory that has page structures, and makes these for memory that the firmware told of (NFIT)
//! only if an information block at its beginning says so, and that they are to be in the node's own memory.
//!
//! Source: `struct nd_pfn_sb` in drivers/nvdimm/pfn.h, `nd_pfn_validate()` in drivers/nvdimm/pfn_devs.c and
//! `nd_fletcher64()` in drivers/nvdimm/core.c.

use crate::chunk::PAGE;

/// Bytes of persistent memory before its content, which is the disk.
pub const HEAD_SIZE: u64 = 2 * PAGE;

/// Where the information block is in the head, and its size.
const BLOCK_AT: usize = PAGE as usize;
const BLOCK_SIZE: usize = PAGE as usize;
const SIGNATURE: [u8; 16] = *b"NVDIMM_PFN_INFO\0";
/// A block has to have some UUID; nobody asks for it.
const UUID: [u8; 16] = *b"insula memory\0\0\0";
const VERSION: (u16, u16) = (1, 4);
/// `PFN_MODE_RAM`: page structures are not in the memory itself.
const MODE: u32 = 1;
/// Of a page structure, in bytes; Linux' are not larger.
const PAGE_STRUCTURE_SIZE: u16 = 64;
/// Where the sum of the block is in it.
const SUM_AT: usize = BLOCK_SIZE - 8;

/// The head of persistent memory of `size` bytes, head included: whole pages, and more than [`HEAD_SIZE`].
#[must_use]
pub fn head(size: u64) -> Vec<u8> {
    let mut head = vec![0; HEAD_SIZE as usize];
    let block = &mut head[BLOCK_AT..];
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
    // Alignment of what is mapped, then the size of a page.
    put(84, &page_size.to_le_bytes());
    put(88, &page_size.to_le_bytes());
    put(92, &PAGE_STRUCTURE_SIZE.to_le_bytes());
    let sum = fletcher64(block).to_le_bytes();
    block[SUM_AT..].copy_from_slice(&sum);
    head
}

/// The sum of 32-bit words, and the sum of these sums, each modulo 2^32.
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
    fn tells_where_the_content_is() {
        let head = head(4 << 20);
        assert_eq!(head.len() as u64, HEAD_SIZE);
        assert!(head[..BLOCK_AT].iter().all(|&byte| byte == 0));
        let block = &head[BLOCK_AT..];
        assert_eq!(block[..15], *b"NVDIMM_PFN_INFO");
        let at = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        assert_eq!((at(56), at(64)), (HEAD_SIZE, 1022));
        let mut without = block.to_vec();
        without[SUM_AT..].fill(0);
        assert_eq!(at(SUM_AT), fletcher64(&without));
    }
}
