//! Memory: that of nodes and images, and sets of it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;

use super::{Call, CallResult, address, capacity, fill};

pub(crate) fn memory_create(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::MEMORY_CREATE, "INSULA_MEMORY_CREATE").descriptor(fd, &mut 0_u64) }
}

pub(crate) fn base_memory(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::BASE_MEMORY, "INSULA_BASE_MEMORY").descriptor(fd, &mut 0_u64) }
}

pub(crate) fn memory_grow(fd: BorrowedFd<'_>, mut request: abi::Request) -> CallResult<()> {
    // SAFETY: `Request` is this request's structure and holds no address of ours.
    unsafe { Call(ioctl::MEMORY_GROW, "INSULA_MEMORY_GROW").perform(fd, &mut request) }.map(drop)
}

pub(crate) fn memory_chunks(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Chunk>> {
    fill(|chunks: &mut [abi::Chunk]| {
        let mut list = abi::Chunks {
            chunks: address(chunks),
            capacity: capacity(chunks),
            count: 0,
        };
        // SAFETY: `Chunks` is this request's structure; it names `chunks` and its length.
        unsafe { Call(ioctl::MEMORY_CHUNKS, "INSULA_MEMORY_CHUNKS").perform(fd, &mut list) }?;
        Ok(list.count)
    })
}

pub(crate) fn memory_copy(
    fd: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    from: u64,
    to: u64,
    size: u64,
) -> CallResult<()> {
    let mut copy = abi::MemoryCopy {
        from,
        to,
        size,
        source: source.as_raw_fd(),
        flags: 0,
    };
    // SAFETY: `MemoryCopy` is this request's structure; it holds offsets, which the module checks,
    // and no address.
    unsafe { Call(ioctl::MEMORY_COPY, "INSULA_MEMORY_COPY").perform(fd, &mut copy) }.map(drop)
}

pub(crate) fn memory_show(
    fd: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    chunks: &[abi::Chunk],
) -> CallResult<OwnedFd> {
    let mut show = abi::MemoryShow {
        chunks: chunks.as_ptr() as u64,
        count: capacity(chunks),
        source: source.as_raw_fd(),
    };
    // SAFETY: `MemoryShow` is this request's structure; it names `chunks`, which is only read.
    unsafe { Call(ioctl::MEMORY_SHOW, "INSULA_MEMORY_SHOW").descriptor(fd, &mut show) }
}

pub(crate) fn memory_use(fd: BorrowedFd<'_>) -> CallResult<abi::MemoryUse> {
    let mut used = abi::MemoryUse::default();
    // SAFETY: `MemoryUse` is this request's structure, which is only written.
    unsafe { Call(ioctl::MEMORY_USE, "INSULA_MEMORY_USE").perform(fd, &mut used) }?;
    Ok(used)
}

pub(crate) fn memory_store_set(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::MEMORY_STORE_SET, "INSULA_MEMORY_STORE_SET")
        .bare(fd)
        .map(drop)
}

pub(crate) fn memory_own_set(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::MEMORY_OWN_SET, "INSULA_MEMORY_OWN_SET")
        .bare(fd)
        .map(drop)
}

pub(crate) fn memory_list_set(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Chunk>> {
    fill(|extents: &mut [abi::Chunk]| {
        let mut list = abi::Chunks {
            chunks: address(extents),
            capacity: capacity(extents),
            count: 0,
        };
        // SAFETY: `Chunks` is this request's structure; it names `extents` and its length.
        unsafe { Call(ioctl::MEMORY_LIST_SET, "INSULA_MEMORY_LIST_SET").perform(fd, &mut list) }?;
        Ok(list.count)
    })
}

pub(crate) fn memory_give_set(fd: BorrowedFd<'_>, extents: &[abi::Chunk]) -> CallResult<()> {
    let mut list = abi::Chunks {
        chunks: extents.as_ptr() as u64,
        capacity: capacity(extents),
        count: 0,
    };
    let call = Call(ioctl::MEMORY_GIVE_SET, "INSULA_MEMORY_GIVE_SET");
    // SAFETY: `Chunks` is this request's structure; it names `extents`, which is only read.
    unsafe { call.perform(fd, &mut list) }.map(drop)
}
