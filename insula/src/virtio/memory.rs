//! A node's memory, as back ends want it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use insula_abi::Chunk;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap,
};

use crate::driver::{CallError, Memory};

/// Why a node's memory cannot be shared with back ends.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    /// The module did not tell where it lies.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its descriptor could not be duplicated.
    #[error("duplicating the descriptor of the node's memory: {0}")]
    Duplicate(std::io::Error),
    /// It could not be mapped.
    #[error("mapping the node's memory: {0}")]
    Map(String),
}

/// All of a node's memory, mapped by physical address as a virtual machine monitor has its guest's.
/// It is reached by the kernel and by back ends only: no reference into it is made here.
#[derive(Clone, Debug)]
pub struct NodeMemory(Arc<GuestMemoryMmap<()>>);

impl NodeMemory {
    /// Maps it.
    ///
    /// # Errors
    /// [`ShareError`]; nothing stays mapped.
    pub fn share(memory: &Memory) -> Result<Self, ShareError> {
        let chunks = memory.chunks()?;
        let fd = memory.as_fd().try_clone_to_owned();
        Self::map(fd.map_err(ShareError::Duplicate)?, &chunks)
    }

    pub(super) fn map(fd: OwnedFd, chunks: &[Chunk]) -> Result<Self, ShareError> {
        let file = Arc::new(std::fs::File::from(fd));
        let ranges = regions(chunks).into_iter().map(|(offset, chunk)| {
            let file = FileOffset::from_arc(Arc::clone(&file), offset);
            (GuestAddress(chunk.start), chunk.size as usize, Some(file))
        });
        let mapped = GuestMemoryMmap::from_ranges_with_files(ranges.collect::<Vec<_>>());
        let mapped = mapped.map_err(|error| ShareError::Map(error.to_string()))?;
        Ok(Self(Arc::new(mapped)))
    }

    /// As the crate `vhost` wants it.
    pub(super) fn guest(&self) -> Arc<GuestMemoryMmap<()>> {
        Arc::clone(&self.0)
    }

    /// The regions that are mapped as one each.
    pub(super) fn regions(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        self.0.iter()
    }

    /// Whether so many bytes lie in one region, so that who has the address of the first has all.
    pub(super) fn is_one_piece(&self, address: u64, size: u64) -> bool {
        let region = self.0.find_region(GuestAddress(address));
        region.is_some_and(|region| {
            let skip = address - region.start_addr().0;
            size <= region.len() - skip
        })
    }
}

/// The chunks by physical address, each with its offset. Those that are next to each other both in
/// memory and in the object become one: back ends do not take many.
fn regions(chunks: &[Chunk]) -> Vec<(u64, Chunk)> {
    let mut offset = 0;
    let mut sorted: Vec<_> = chunks
        .iter()
        .map(|&chunk| {
            let this = offset;
            offset += chunk.size;
            (this, chunk)
        })
        .collect();
    sorted.sort_unstable_by_key(|(_, chunk)| chunk.start);
    let mut joined: Vec<(u64, Chunk)> = Vec::new();
    for (offset, chunk) in sorted {
        match joined.last_mut() {
            Some((first, last))
                if last.start + last.size == chunk.start && *first + last.size == offset =>
            {
                last.size += chunk.size;
            }
            _ => joined.push((offset, chunk)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(list: &[(u64, u64)]) -> Vec<Chunk> {
        let chunk = |&(start, size)| Chunk { start, size };
        list.iter().map(chunk).collect()
    }

    #[test]
    fn only_what_is_contiguous_both_ways_becomes_one_region() {
        let joined = |list| {
            let regions = regions(&chunks(list)).into_iter();
            regions
                .map(|(offset, chunk)| (offset, chunk.start, chunk.size))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            joined(&[(0x3000, 0x1000), (0x4000, 0x2000)]),
            [(0, 0x3000, 0x3000)]
        );
        assert_eq!(
            joined(&[(0x4000, 0x2000), (0x3000, 0x1000)]),
            [(0x2000, 0x3000, 0x1000), (0, 0x4000, 0x2000)]
        );
        assert_eq!(
            joined(&[(0x3000, 0x1000), (0x5000, 0x1000)]),
            [(0, 0x3000, 0x1000), (0x1000, 0x5000, 0x1000)]
        );
    }

    #[test]
    fn a_ring_must_not_lead_out_of_its_region() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x4000).unwrap();
        let chunks = chunks(&[(0x4000, 0x2000), (0x2000, 0x2000)]);
        let memory = NodeMemory::map(file.into(), &chunks).unwrap();
        assert!(memory.is_one_piece(0x4000, 0x2000));
        assert!(!memory.is_one_piece(0x3000, 0x1001), "it leads to another");
        assert!(!memory.is_one_piece(0x5000, 0x1001), "it leads nowhere");
        assert!(!memory.is_one_piece(0x5000, u64::MAX));
        assert!(!memory.is_one_piece(0x6000, 1) && !memory.is_one_piece(0x1000, 1));
    }
}
