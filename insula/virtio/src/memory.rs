//! A node's memory, mapped for backends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use insula_abi::Chunk;
use insula_base::error::Source;
use insula_driver::{Memory, Node};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionMmap,
};

use super::device::StartError;
use super::vhost::failed;

/// A node, and the limit on its memory that its devices may access.
///
/// A running node's memory grows and shrinks at its end. Memory to be removed is taken from the
/// devices first, while it still belongs to the node, hence the separate limit.
#[derive(Debug)]
pub(super) struct DeviceNode {
    node: Arc<Node>,
    /// Chunks that the node was started with.
    started: usize,
    /// Number of its first chunks that devices may access.
    chunks_max: AtomicUsize,
}

impl DeviceNode {
    /// A node started with `started` chunks, without a limit.
    pub(super) fn new(node: Arc<Node>, started: usize) -> Self {
        Self {
            node,
            started,
            chunks_max: AtomicUsize::new(usize::MAX),
        }
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Limits new mappings to the node's first `count` chunks. Returns the previous limit.
    pub(super) fn limit(&self, count: usize) -> usize {
        self.chunks_max.swap(count, Ordering::Relaxed)
    }

    /// Maps the memory in as few regions as possible: for vhost of the kernel, which gets all of
    /// them at once.
    pub(super) fn map_joined(&self) -> Result<NodeMemory, StartError> {
        self.share(usize::MAX)
    }

    /// Maps the memory in regions that stay the same while the node grows and shrinks: for
    /// processes, which get and lose regions one by one.
    pub(super) fn map_apart(&self) -> Result<NodeMemory, StartError> {
        self.share(self.started)
    }

    fn share(&self, joined: usize) -> Result<NodeMemory, StartError> {
        let memory = self.node.memory().map_err(failed("the node's memory"))?;
        let most = self.chunks_max.load(Ordering::Relaxed);
        NodeMemory::share(&memory, most, joined).map_err(failed("the node's memory"))
    }
}

/// A node's memory, mapped by physical address like a VMM's guest memory. Only the kernel and
/// backends access it: no reference into it is made here.
#[derive(Clone, Debug)]
pub(crate) struct NodeMemory(Arc<GuestMemoryMmap<()>>);

impl NodeMemory {
    /// Maps at most `most` chunks. Adjacent ones among the first `joined` are merged into one
    /// region.
    ///
    /// # Errors
    /// When the memory's place is unknown or it cannot be mapped; nothing stays mapped.
    pub(crate) fn share(memory: &Memory, most: usize, joined: usize) -> Result<Self, Source> {
        let mut chunks = memory.chunks()?;
        chunks.truncate(most);
        let fd = memory
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| format!("duplicating the descriptor of the node's memory: {error}"))?;
        Self::map(fd, &chunks, joined)
    }

    pub(super) fn map(fd: OwnedFd, chunks: &[Chunk], joined: usize) -> Result<Self, Source> {
        let file = Arc::new(std::fs::File::from(fd));
        let ranges = regions(chunks, joined).into_iter().map(|(offset, chunk)| {
            let file = FileOffset::from_arc(Arc::clone(&file), offset);
            (GuestAddress(chunk.start), chunk.size as usize, Some(file))
        });
        let mapped = GuestMemoryMmap::from_ranges_with_files(ranges.collect::<Vec<_>>());
        let mapped = mapped.map_err(|error| format!("mapping the node's memory: {error}"))?;
        Ok(Self(Arc::new(mapped)))
    }

    /// The memory as the crate `vhost` takes it.
    pub(super) fn guest(&self) -> Arc<GuestMemoryMmap<()>> {
        Arc::clone(&self.0)
    }

    /// The mapped regions.
    pub(super) fn regions(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        self.0.iter()
    }

    /// Whether `size` bytes from `address` lie in one region, and so are contiguous in its mapping.
    pub(super) fn is_one_piece(&self, address: u64, size: u64) -> bool {
        let region = self.0.find_region(GuestAddress(address));
        region.is_some_and(|region| {
            let skip = address - region.start_addr().0;
            size <= region.len() - skip
        })
    }
}

/// Regions by physical address, each with its offset in the object. Chunks among the first `joined`
/// that are adjacent in both are merged, since backends have few memory slots.
fn regions(chunks: &[Chunk], joined: usize) -> Vec<(u64, Chunk)> {
    let mut end = 0;
    let mut placed: Vec<_> = chunks
        .iter()
        .map(|&chunk| {
            let offset = end;
            end += chunk.size;
            (offset, chunk)
        })
        .collect();
    let apart = placed.split_off(joined.min(placed.len()));
    let mut regions = join(placed);
    regions.extend(apart);
    regions.sort_unstable_by_key(|(_, chunk)| chunk.start);
    regions
}

fn join(mut placed: Vec<(u64, Chunk)>) -> Vec<(u64, Chunk)> {
    placed.sort_unstable_by_key(|(_, chunk)| chunk.start);
    let mut joined: Vec<(u64, Chunk)> = Vec::new();
    for (offset, chunk) in placed {
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

    fn placed(list: &[(u64, u64)], joined: usize) -> Vec<(u64, u64, u64)> {
        let regions = regions(&chunks(list), joined).into_iter();
        let place = |(offset, chunk): (u64, Chunk)| (offset, chunk.start, chunk.size);
        regions.map(place).collect()
    }

    /// Otherwise removing a part would remove a whole region from a running backend.
    #[test]
    fn memory_added_later_stays_separate() {
        let started = [(0x3000, 0x1000), (0x4000, 0x2000)];
        let grown = [&started[..], &[(0x6000, 0x1000), (0x7000, 0x1000)]].concat();
        let before = placed(&started, 2);
        let after = placed(&grown, 2);
        assert_eq!(before, [(0, 0x3000, 0x3000)]);
        let more = [(0x3000, 0x6000, 0x1000), (0x4000, 0x7000, 0x1000)];
        assert_eq!(after, [&before[..], &more[..]].concat());
        assert_eq!(placed(&grown, usize::MAX), [(0, 0x3000, 0x5000)]);
    }

    #[test]
    fn only_chunks_adjacent_in_memory_and_object_are_merged() {
        let joined = |list| placed(list, usize::MAX);
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
    fn a_ring_must_not_extend_beyond_its_region() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(0x4000).unwrap();
        let chunks = chunks(&[(0x4000, 0x2000), (0x2000, 0x2000)]);
        let memory = NodeMemory::map(file.into(), &chunks, usize::MAX).unwrap();
        assert!(memory.is_one_piece(0x4000, 0x2000));
        assert!(!memory.is_one_piece(0x3000, 0x1001), "into another region");
        assert!(!memory.is_one_piece(0x5000, 0x1001), "out of all regions");
        assert!(!memory.is_one_piece(0x5000, u64::MAX));
        assert!(!memory.is_one_piece(0x6000, 1) && !memory.is_one_piece(0x1000, 1));
    }
}
