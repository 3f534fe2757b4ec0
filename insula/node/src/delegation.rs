//! A node of the lightweight kernel: the area of its memory for delegation, and its options.

use insula_abi::lwk::{DelegationPlace, PAGE_SIZE, PAGES_MAX};
use insula_boot::{Chunk, Layout};
use insula_driver::channel;
use kimage::{Format, Loadable};

/// Fewest pages of the delegation area of a node that runs programs: enough for some 70 processes.
const AREA_PAGES_MIN: u64 = 256;
/// Part of a node's memory that the area takes, as a divisor: a page for each 128 KiB. A process
/// needs three, a thread a sixteenth of one.
const AREA_PART: u64 = 32;
/// Part of the largest chunk that it takes at most.
const AREA_CHUNK_PART: u64 = 4;

/// Option on a node's command line: the node powers off after its last program.
pub const ONCE: &str = "once";

/// Size in bytes of the delegation area of a node with that kernel and memory; it follows the
/// channels.
#[must_use]
pub(crate) fn area_size(kernel: &Loadable, chunks: &[Chunk]) -> u64 {
    match kernel.format {
        Format::Lwk => area_pages(chunks) * PAGE_SIZE,
        _ => 0,
    }
}

fn area_pages(chunks: &[Chunk]) -> u64 {
    let sizes = || chunks.iter().map(|chunk| chunk.size);
    let all = sizes().fold(0, u64::saturating_add) / AREA_PART;
    let largest = sizes().max().unwrap_or(0) / AREA_CHUNK_PART;
    (all.min(largest) / PAGE_SIZE).clamp(AREA_PAGES_MIN, PAGES_MAX.into())
}

/// The delegation area of a node with that layout, if it has one.
#[must_use]
pub(crate) fn area(layout: &Layout) -> Option<DelegationPlace> {
    let pages = layout.channels_size.checked_sub(channel::AREA_SIZE)? / PAGE_SIZE;
    let pages = u32::try_from(pages).ok().filter(|&pages| pages > 0)?;
    Some(DelegationPlace {
        start: layout.channels + channel::AREA_SIZE,
        pages,
        reserved: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(sizes: &[u64]) -> u64 {
        let chunk = |&size: &u64| Chunk { start: 0, size };
        area_pages(&sizes.iter().map(chunk).collect::<Vec<_>>())
    }

    #[test]
    fn the_area_grows_with_the_memory() {
        const MIB: u64 = 1 << 20;
        assert_eq!(pages(&[16 * MIB]), AREA_PAGES_MIN);
        assert_eq!(pages(&[512 * MIB]), 4096);
        assert_eq!(pages(&[16384 * MIB]), u64::from(PAGES_MAX));
        // It has to fit into one chunk.
        assert_eq!(pages(&[8 * MIB; 64]), 512);
        assert_eq!(pages(&[]), AREA_PAGES_MIN);
        assert_eq!(pages(&[u64::MAX, u64::MAX]), u64::from(PAGES_MAX));
    }
}
