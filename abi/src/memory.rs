//! Memory objects: requests for memory, and the chunks of an object.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `INSULA_GRANULE`: unit in which memory is taken, and its alignment, in bytes.
pub const GRANULE: u64 = 2 << 20;
/// `INSULA_WORKING_SET_MAX`: most pages of a working set.
pub const WORKING_SET_MAX: u64 = 2048;
/// `INSULA_LOWMEM_LIMIT`: end of the memory in which a core can be started.
pub const LOWMEM_LIMIT: u64 = 1 << 20;
/// `INSULA_NUMA_ANY`: no preference for [`Request::numa_node`].
pub const NUMA_ANY: i32 = -1;

/// `struct insula_request`: memory to take.
///
/// With `max_phys <= LOWMEM_LIMIT` (and not 0) it comes from the firmware's RAM below 1 MiB, in
/// pages, else in granules.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Request {
    /// Bytes; a multiple of [`GRANULE`], of 4096 for lowmem.
    pub size: u64,
    /// Lowest physical address of a chunk.
    pub min_phys: u64,
    /// Physical address at or below which every chunk ends; 0 for no bound.
    pub max_phys: u64,
    /// Largest chunk to take, in bytes; 0 for no limit.
    pub chunk_max: u64,
    /// NUMA node to take from, or [`NUMA_ANY`].
    pub numa_node: i32,
    /// `REQUEST_*`.
    pub flags: u32,
}

/// `INSULA_REQUEST_BLOCKS`, a flag of [`Request::flags`]: each chunk has exactly
/// [`Request::chunk_max`] bytes, a power of two that divides the size, and is aligned to it.
pub const REQUEST_BLOCKS: u32 = 1 << 0;

/// `struct insula_chunk`: a contiguous extent of physical memory.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Chunk {
    /// Physical address of its first byte.
    pub start: u64,
    /// Its bytes.
    pub size: u64,
}

/// `struct insula_chunks`: physical addresses of an object's memory, in order of offset.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct Chunks {
    /// In: address of an array of [`Chunk`] to fill, or 0.
    pub chunks: u64,
    /// In: its length.
    pub capacity: u32,
    /// Out: number of chunks.
    pub count: u32,
}

/// `struct insula_copy`: bytes of another object to copy into this one.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MemoryCopy {
    /// Offset in the other object.
    pub from: u64,
    /// Offset in this one.
    pub to: u64,
    /// Bytes.
    pub size: u64,
    /// Descriptor of the other object.
    pub source: i32,
    /// Zero.
    pub flags: u32,
}

/// `struct insula_memory_show`: an object that shows another one until it is written.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MemoryShow {
    /// In: address of an array of [`Chunk`], in order of offset.
    pub chunks: u64,
    /// In: its length.
    pub count: u32,
    /// In: descriptor of the other object.
    pub source: i32,
}

/// `struct insula_memory_use`: bytes that an object takes.
#[repr(C)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
pub struct MemoryUse {
    /// Bytes of its own.
    pub own: u64,
    /// Bytes of another object that it shows.
    pub shown: u64,
}
