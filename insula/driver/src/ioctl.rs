//! The ioctls of `/dev/insula`, one safe function each.
//!
//! Here Rust's slices become the addresses and lengths of the ABI; each is borrowed for the length
//! of the call, and the module keeps none of them.

#![allow(
    unsafe_code,
    reason = "ioctl is a foreign function that takes addresses"
)]

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;
use nix::errno::Errno;
use nix::libc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::CallError;

type CallResult<T> = Result<T, CallError>;

/// An ioctl, and its name for messages.
#[derive(Clone, Copy)]
struct Call(u32, &'static str);

impl Call {
    /// Performs the call and returns its non-negative result.
    ///
    /// # Safety
    /// `T` is the structure that the request number stands for, and every address and length in
    /// `argument` names memory that the call may read or write as the ABI says.
    unsafe fn perform<T: FromBytes + IntoBytes>(
        self,
        fd: BorrowedFd<'_>,
        argument: &mut T,
    ) -> CallResult<libc::c_int> {
        let address = std::ptr::from_mut(argument);
        // SAFETY: 1. `fd` is open for the length of the call, being borrowed. 2. `address` is valid
        // for reads and writes of the size encoded in the request (the caller's promise). 3. What
        // the module writes there is a valid `T`, since any bytes are (`FromBytes`).
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), self.0 as libc::Ioctl, address) };
        Errno::result(result).map_err(|errno| CallError {
            call: self.1,
            errno,
        })
    }

    /// Performs a call without an argument.
    fn bare(self, fd: BorrowedFd<'_>) -> CallResult<libc::c_int> {
        // SAFETY: the `_IO` requests carry no structure, the module reads and writes nothing.
        unsafe { self.perform(fd, &mut 0_u64) }
    }

    /// Performs a call that returns a new descriptor.
    ///
    /// # Safety
    /// As [`Call::perform`].
    unsafe fn descriptor<T: FromBytes + IntoBytes>(
        self,
        fd: BorrowedFd<'_>,
        argument: &mut T,
    ) -> CallResult<OwnedFd> {
        // SAFETY: passed on to the caller.
        let raw = unsafe { self.perform(fd, argument) }?;
        // SAFETY: the module has just made this descriptor for us alone.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }
}

/// Calls for the number of items and then for the items, until all fit.
fn fill<T: FromZeros + Clone>(
    mut list: impl FnMut(&mut [T]) -> CallResult<u32>,
) -> CallResult<Vec<T>> {
    let mut items = Vec::new();
    loop {
        let count = list(&mut items)? as usize;
        if count <= items.len() {
            items.truncate(count);
            return Ok(items);
        }
        items = vec![T::new_zeroed(); count];
    }
}

fn address<T>(slice: &mut [T]) -> u64 {
    slice.as_mut_ptr() as u64
}

fn capacity<T>(slice: &[T]) -> u32 {
    u32::try_from(slice.len()).unwrap_or(u32::MAX)
}

pub(super) fn hello(fd: BorrowedFd<'_>, hello: &mut abi::Hello) -> CallResult<()> {
    // SAFETY: `Hello` is this request's structure and holds no address.
    unsafe { Call(ioctl::HELLO, "INSULA_HELLO").perform(fd, hello) }.map(drop)
}

pub(super) fn machine(fd: BorrowedFd<'_>) -> CallResult<(abi::Machine, Vec<abi::Cpu>)> {
    let mut machine = abi::Machine::default();
    let cpus = fill(|cpus: &mut [abi::Cpu]| {
        machine = abi::Machine {
            cpus: address(cpus),
            cpus_capacity: capacity(cpus),
            ..Default::default()
        };
        // SAFETY: `Machine` is this request's structure; it names `cpus` and its length.
        unsafe { Call(ioctl::MACHINE, "INSULA_MACHINE").perform(fd, &mut machine) }?;
        Ok(machine.cpus_count)
    })?;
    Ok((machine, cpus))
}

pub(super) fn pool_reserve(
    fd: BorrowedFd<'_>,
    cpus: &[u32],
    memory: abi::Request,
) -> CallResult<()> {
    let mut pool = abi::Pool {
        cpus: cpus.as_ptr() as u64,
        cpus_count: capacity(cpus),
        reserved: 0,
        memory,
    };
    // SAFETY: `Pool` is this request's structure; it names `cpus`, which is only read.
    unsafe { Call(ioctl::POOL_RESERVE, "INSULA_POOL_RESERVE").perform(fd, &mut pool) }.map(drop)
}

pub(super) fn pool_release(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::POOL_RELEASE, "INSULA_POOL_RELEASE")
        .bare(fd)
        .map(drop)
}

pub(super) fn memory_create(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::MEMORY_CREATE, "INSULA_MEMORY_CREATE").descriptor(fd, &mut 0_u64) }
}

pub(super) fn base_memory(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::BASE_MEMORY, "INSULA_BASE_MEMORY").descriptor(fd, &mut 0_u64) }
}

pub(super) fn memory_grow(fd: BorrowedFd<'_>, mut request: abi::Request) -> CallResult<()> {
    // SAFETY: `Request` is this request's structure and holds no address of ours.
    unsafe { Call(ioctl::MEMORY_GROW, "INSULA_MEMORY_GROW").perform(fd, &mut request) }.map(drop)
}

pub(super) fn memory_chunks(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Chunk>> {
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

pub(super) fn memory_copy(
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

pub(super) fn memory_show(
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

pub(super) fn memory_use(fd: BorrowedFd<'_>) -> CallResult<abi::MemoryUse> {
    let mut used = abi::MemoryUse::default();
    // SAFETY: `MemoryUse` is this request's structure, which is only written.
    unsafe { Call(ioctl::MEMORY_USE, "INSULA_MEMORY_USE").perform(fd, &mut used) }?;
    Ok(used)
}

pub(super) fn memory_store_set(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::MEMORY_STORE_SET, "INSULA_MEMORY_STORE_SET")
        .bare(fd)
        .map(drop)
}

pub(super) fn memory_own_set(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::MEMORY_OWN_SET, "INSULA_MEMORY_OWN_SET")
        .bare(fd)
        .map(drop)
}

pub(super) fn memory_list_set(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Chunk>> {
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

pub(super) fn memory_give_set(fd: BorrowedFd<'_>, extents: &[abi::Chunk]) -> CallResult<()> {
    let mut list = abi::Chunks {
        chunks: extents.as_ptr() as u64,
        capacity: capacity(extents),
        count: 0,
    };
    let call = Call(ioctl::MEMORY_GIVE_SET, "INSULA_MEMORY_GIVE_SET");
    // SAFETY: `Chunks` is this request's structure; it names `extents`, which is only read.
    unsafe { call.perform(fd, &mut list) }.map(drop)
}

pub(super) fn image_add(
    fd: BorrowedFd<'_>,
    name: &abi::Name,
    description: &[u8],
    memory: BorrowedFd<'_>,
) -> CallResult<()> {
    let add = Call(ioctl::IMAGE_ADD, "INSULA_IMAGE_ADD");
    image_put(add, fd, name, description, memory)
}

pub(super) fn image_replace(
    fd: BorrowedFd<'_>,
    name: &abi::Name,
    description: &[u8],
    memory: BorrowedFd<'_>,
) -> CallResult<()> {
    let replace = Call(ioctl::IMAGE_REPLACE, "INSULA_IMAGE_REPLACE");
    image_put(replace, fd, name, description, memory)
}

/// Common part of the two calls above.
fn image_put(
    call: Call,
    fd: BorrowedFd<'_>,
    name: &abi::Name,
    description: &[u8],
    memory: BorrowedFd<'_>,
) -> CallResult<()> {
    let mut image = abi::Image {
        name: *name,
        description: description.as_ptr() as u64,
        description_size: capacity(description),
        memory: memory.as_raw_fd(),
    };
    // SAFETY: `Image` is both requests' structure; it names `description`, which is only read.
    unsafe { call.perform(fd, &mut image) }.map(drop)
}

pub(super) fn image_open(fd: BorrowedFd<'_>, name: &abi::Name) -> CallResult<OwnedFd> {
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { Call(ioctl::IMAGE_OPEN, "INSULA_IMAGE_OPEN").descriptor(fd, &mut { *name }) }
}

pub(super) fn image_remove(fd: BorrowedFd<'_>, name: &abi::Name) -> CallResult<()> {
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { Call(ioctl::IMAGE_REMOVE, "INSULA_IMAGE_REMOVE").perform(fd, &mut { *name }) }
        .map(drop)
}

pub(super) fn image_list(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Name>> {
    names(fd, Call(ioctl::IMAGE_LIST, "INSULA_IMAGE_LIST"))
}

pub(super) fn node_list(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Name>> {
    names(fd, Call(ioctl::NODE_LIST, "INSULA_NODE_LIST"))
}

fn names(fd: BorrowedFd<'_>, call: Call) -> CallResult<Vec<abi::Name>> {
    fill(|names: &mut [abi::Name]| {
        let mut list = abi::Names {
            names: address(names),
            capacity: capacity(names),
            count: 0,
        };
        // SAFETY: `Names` is the structure of both lists' requests; it names `names` and its
        // length.
        unsafe { call.perform(fd, &mut list) }?;
        Ok(list.count)
    })
}

pub(super) fn node_create(
    fd: BorrowedFd<'_>,
    name: &abi::Name,
    description: &[u8],
    cpus: &[u32],
    (core_share, share_by): (u16, abi::ShareBy),
    memory: BorrowedFd<'_>,
) -> CallResult<OwnedFd> {
    let mut node = abi::NodeCreate {
        name: *name,
        description: description.as_ptr() as u64,
        description_size: capacity(description),
        cpus_count: capacity(cpus),
        cpus: cpus.as_ptr() as u64,
        memory: memory.as_raw_fd(),
        core_share,
        share_by,
    };
    // SAFETY: `NodeCreate` is this request's structure; it names `description` and `cpus`, which
    // are only read.
    unsafe { Call(ioctl::NODE_CREATE, "INSULA_NODE_CREATE").descriptor(fd, &mut node) }
}

pub(super) fn node_open(fd: BorrowedFd<'_>, name: &abi::Name) -> CallResult<OwnedFd> {
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { Call(ioctl::NODE_OPEN, "INSULA_NODE_OPEN").descriptor(fd, &mut { *name }) }
}

pub(super) fn node_start(fd: BorrowedFd<'_>, mut start: abi::NodeStart) -> CallResult<()> {
    // SAFETY: `NodeStart` is this request's structure; its addresses are physical, and the module
    // checks that they are in the node's own memory.
    unsafe { Call(ioctl::NODE_START, "INSULA_NODE_START").perform(fd, &mut start) }.map(drop)
}

pub(super) fn node_stop(fd: BorrowedFd<'_>, reason: abi::Reason) -> CallResult<()> {
    let mut stop = abi::NodeStop {
        reason,
        reserved: 0,
    };
    // SAFETY: `NodeStop` is this request's structure and holds no address.
    unsafe { Call(ioctl::NODE_STOP, "INSULA_NODE_STOP").perform(fd, &mut stop) }.map(drop)
}

pub(super) fn node_interrupt(fd: BorrowedFd<'_>, index: u32, vector: u32) -> CallResult<()> {
    let mut interrupt = abi::NodeInterrupt { index, vector };
    let call = Call(ioctl::NODE_INTERRUPT, "INSULA_NODE_INTERRUPT");
    // SAFETY: `NodeInterrupt` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut interrupt) }.map(drop)
}

pub(super) fn node_supervise(
    fd: BorrowedFd<'_>,
    mut supervise: abi::NodeSupervise,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_SUPERVISE, "INSULA_NODE_SUPERVISE");
    // SAFETY: `NodeSupervise` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut supervise) }.map(drop)
}

pub(super) fn node_retire(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_RETIRE, "INSULA_NODE_RETIRE")
        .bare(fd)
        .map(drop)
}

pub(super) fn node_exchange_names(fd: BorrowedFd<'_>, with: &abi::Name) -> CallResult<()> {
    let call = Call(ioctl::NODE_EXCHANGE_NAMES, "INSULA_NODE_EXCHANGE_NAMES");
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut { *with }) }.map(drop)
}

pub(super) fn node_recreate(fd: BorrowedFd<'_>, description: &[u8], flags: u32) -> CallResult<()> {
    let mut recreate = abi::NodeRecreate {
        description: description.as_ptr() as u64,
        description_size: capacity(description),
        flags,
    };
    let call = Call(ioctl::NODE_RECREATE, "INSULA_NODE_RECREATE");
    // SAFETY: `NodeRecreate` is this request's structure; it names `description`, which is only
    // read.
    unsafe { call.perform(fd, &mut recreate) }.map(drop)
}

pub(super) fn node_channels(
    fd: BorrowedFd<'_>,
    mut channels: abi::channel::Channels,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_CHANNELS, "INSULA_NODE_CHANNELS");
    // SAFETY: `Channels` is this request's structure; its address is physical, and the module
    // checks that it is in the node's own memory.
    unsafe { call.perform(fd, &mut channels) }.map(drop)
}

/// Opens an endpoint: its descriptor and the slots of its rings.
pub(super) fn channel_open(fd: BorrowedFd<'_>, index: u32) -> CallResult<(OwnedFd, u32)> {
    let mut open = abi::channel::ChannelOpen { index, slots: 0 };
    let call = Call(ioctl::CHANNEL_OPEN, "INSULA_CHANNEL_OPEN");
    // SAFETY: `ChannelOpen` is this request's structure and holds no address.
    let fd = unsafe { call.descriptor(fd, &mut open) }?;
    Ok((fd, open.slots))
}

pub(super) fn channel_ring(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::CHANNEL_RING, "INSULA_CHANNEL_RING")
        .bare(fd)
        .map(drop)
}

/// Creates a grant table: its descriptor and id.
pub(super) fn node_grant_table(fd: BorrowedFd<'_>, timeout_ms: u32) -> CallResult<(OwnedFd, u32)> {
    let mut table = abi::grant::GrantTable { id: 0, timeout_ms };
    let call = Call(ioctl::NODE_GRANT_TABLE, "INSULA_NODE_GRANT_TABLE");
    // SAFETY: `GrantTable` is this request's structure and holds no address.
    let fd = unsafe { call.descriptor(fd, &mut table) }?;
    Ok((fd, table.id))
}

pub(super) fn grant_add(
    fd: BorrowedFd<'_>,
    address: u64,
    size: u64,
    flags: u32,
) -> CallResult<Vec<u64>> {
    const PAGE: u64 = 4096;
    let call = Call(ioctl::GRANT_ADD, "INSULA_GRANT_ADD");
    let count = usize::try_from(size / PAGE).unwrap_or(usize::MAX);
    let mut pages = Vec::new();
    // Fails for impossible sizes only.
    pages.try_reserve_exact(count).map_err(|_| CallError {
        call: call.1,
        errno: Errno::ENOMEM,
    })?;
    pages.resize(count, 0_u64);
    let mut grant = abi::grant::GrantAdd {
        address,
        size,
        pages: self::address(&mut pages),
        capacity: capacity(&pages),
        flags,
    };
    // SAFETY: `GrantAdd` is this request's structure; it names `pages` and its length. The call
    // does not change the memory at `address`, and the caller accepts that others use it.
    unsafe { call.perform(fd, &mut grant) }?;
    Ok(pages)
}

pub(super) fn grant_revoke(
    fd: BorrowedFd<'_>,
    mut revoke: abi::grant::GrantRevoke,
) -> CallResult<()> {
    let call = Call(ioctl::GRANT_REVOKE, "INSULA_GRANT_REVOKE");
    // SAFETY: `GrantRevoke` is this request's structure; its address is only compared.
    unsafe { call.perform(fd, &mut revoke) }.map(drop)
}

pub(super) fn grant_import(fd: BorrowedFd<'_>, table: u32) -> CallResult<OwnedFd> {
    let mut import = abi::grant::GrantImport { table, reserved: 0 };
    // SAFETY: `GrantImport` is this request's structure and holds no address.
    unsafe { Call(ioctl::GRANT_IMPORT, "INSULA_GRANT_IMPORT").descriptor(fd, &mut import) }
}

pub(super) fn node_delegation(
    fd: BorrowedFd<'_>,
    mut place: abi::lwk::DelegationPlace,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_DELEGATION, "INSULA_NODE_DELEGATION");
    // SAFETY: `DelegationPlace` is this request's structure; its address is physical, and the
    // module checks that it is in the node's own memory.
    unsafe { call.perform(fd, &mut place) }.map(drop)
}

/// Creates a mirror: its descriptor and first slot.
pub(super) fn mirror_create(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
    flags: u32,
) -> CallResult<(OwnedFd, u32)> {
    let mut mirror = abi::lwk::MirrorCreate {
        start: range.start,
        end: range.end,
        flags,
        ..Default::default()
    };
    let call = Call(ioctl::MIRROR_CREATE, "INSULA_MIRROR_CREATE");
    // SAFETY: `MirrorCreate` is this request's structure; the module only passes its addresses on.
    let fd = unsafe { call.descriptor(fd, &mut mirror) }?;
    Ok((fd, mirror.slot))
}

/// Has a program leave its node, or go on there.
pub(super) fn mirror_leave(fd: BorrowedFd<'_>, flags: u64) -> CallResult<abi::lwk::MirrorLeave> {
    let mut left = abi::lwk::MirrorLeave {
        flags,
        ..Default::default()
    };
    let call = Call(ioctl::MIRROR_LEAVE, "INSULA_MIRROR_LEAVE");
    // SAFETY: `MirrorLeave` is this request's structure and holds no address of this process.
    unsafe { call.perform(fd, &mut left) }?;
    Ok(left)
}

/// Binds an event of a channel to two eventfds, or unbinds it.
pub(super) fn channel_eventfd(
    fd: BorrowedFd<'_>,
    event: u32,
    eventfds: Option<(&dyn AsRawFd, &dyn AsRawFd)>,
) -> CallResult<()> {
    let (ioeventfd, irqfd) = eventfds.map_or((-1, -1), |(ioeventfd, irqfd)| {
        (ioeventfd.as_raw_fd(), irqfd.as_raw_fd())
    });
    let mut binding = abi::channel::ChannelEventfd {
        event,
        ioeventfd,
        irqfd,
        reserved: 0,
    };
    let call = Call(ioctl::CHANNEL_EVENTFD, "INSULA_CHANNEL_EVENTFD");
    // SAFETY: `ChannelEventfd` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut binding) }.map(drop)
}

pub(super) fn node_info(fd: BorrowedFd<'_>) -> CallResult<(abi::NodeInfo, Vec<abi::Cpu>)> {
    let mut info = abi::NodeInfo::default();
    let cpus = fill(|cpus: &mut [abi::Cpu]| {
        info = abi::NodeInfo {
            cpus: address(cpus),
            cpus_capacity: capacity(cpus),
            ..Default::default()
        };
        // SAFETY: `NodeInfo` is this request's structure; it names `cpus` and its length.
        unsafe { Call(ioctl::NODE_INFO, "INSULA_NODE_INFO").perform(fd, &mut info) }?;
        Ok(info.cpus_count)
    })?;
    Ok((info, cpus))
}

pub(super) fn node_remove(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_REMOVE, "INSULA_NODE_REMOVE")
        .bare(fd)
        .map(drop)
}

pub(super) fn node_memory(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::NODE_MEMORY, "INSULA_NODE_MEMORY").descriptor(fd, &mut 0_u64) }
}

pub(super) fn node_grow(
    fd: BorrowedFd<'_>,
    cpus: &[u32],
    memory: Option<BorrowedFd<'_>>,
) -> CallResult<()> {
    let mut grow = abi::NodeGrow {
        cpus: cpus.as_ptr() as u64,
        cpus_count: capacity(cpus),
        memory: memory.map_or(-1, |memory| memory.as_raw_fd()),
    };
    // SAFETY: `NodeGrow` is this request's structure; it names `cpus`, which is only read.
    unsafe { Call(ioctl::NODE_GROW, "INSULA_NODE_GROW").perform(fd, &mut grow) }.map(drop)
}

pub(super) fn node_share(fd: BorrowedFd<'_>, memory: BorrowedFd<'_>) -> CallResult<()> {
    let mut share = abi::NodeShare {
        memory: memory.as_raw_fd(),
        flags: 0,
    };
    // SAFETY: `NodeShare` is this request's structure and holds no address.
    unsafe { Call(ioctl::NODE_SHARE, "INSULA_NODE_SHARE").perform(fd, &mut share) }.map(drop)
}

pub(super) fn node_confine(
    fd: BorrowedFd<'_>,
    mut confine: abi::monitor::NodeConfine,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_CONFINE, "INSULA_NODE_CONFINE");
    // SAFETY: `NodeConfine` is this request's structure; its addresses are the monitor's, in whose
    // memory the module checks them.
    unsafe { call.perform(fd, &mut confine) }.map(drop)
}

pub(super) fn node_monitor(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::NODE_MONITOR, "INSULA_NODE_MONITOR").descriptor(fd, &mut 0_u64) }
}

pub(super) fn node_pause(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_PAUSE, "INSULA_NODE_PAUSE")
        .bare(fd)
        .map(drop)
}

pub(super) fn node_resume(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_RESUME, "INSULA_NODE_RESUME")
        .bare(fd)
        .map(drop)
}

pub(super) fn node_shared(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::NODE_SHARED, "INSULA_NODE_SHARED").descriptor(fd, &mut 0_u64) }
}

pub(super) fn node_shrink(fd: BorrowedFd<'_>, cpus: &[u32], chunks: u32) -> CallResult<()> {
    let mut shrink = abi::NodeShrink {
        cpus: cpus.as_ptr() as u64,
        cpus_count: capacity(cpus),
        chunks,
    };
    // SAFETY: `NodeShrink` is this request's structure; it names `cpus`, which is only read.
    unsafe { Call(ioctl::NODE_SHRINK, "INSULA_NODE_SHRINK").perform(fd, &mut shrink) }.map(drop)
}

pub(super) fn node_device_add(fd: BorrowedFd<'_>, mut device: abi::Device) -> CallResult<()> {
    let call = Call(ioctl::NODE_DEVICE_ADD, "INSULA_NODE_DEVICE_ADD");
    // SAFETY: `Device` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut device) }.map(drop)
}

pub(super) fn node_devices(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Device>> {
    fill(|devices: &mut [abi::Device]| {
        let mut request = abi::Devices {
            devices: address(devices),
            capacity: capacity(devices),
            count: 0,
        };
        let call = Call(ioctl::NODE_DEVICES, "INSULA_NODE_DEVICES");
        // SAFETY: `Devices` is this request's structure; it names `devices` and its length.
        unsafe { call.perform(fd, &mut request) }?;
        Ok(request.count)
    })
}

pub(super) fn description(fd: BorrowedFd<'_>) -> CallResult<Vec<u8>> {
    fill(|bytes: &mut [u8]| {
        let mut description = abi::Description {
            bytes: address(bytes),
            capacity: capacity(bytes),
            size: 0,
        };
        let call = Call(ioctl::DESCRIPTION, "INSULA_DESCRIPTION");
        // SAFETY: `Description` is this request's structure; it names `bytes` and its size.
        unsafe { call.perform(fd, &mut description) }?;
        Ok(description.size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_repeats_until_all_items_fit() {
        let mut sizes = [3_u32, 5, 4].into_iter();
        let items = fill(|items: &mut [u32]| {
            items.fill(7);
            Ok(sizes.next().unwrap())
        })
        .unwrap();
        assert_eq!(items, [7; 4]);
    }

    #[test]
    fn a_descriptor_of_another_device_is_an_error() {
        use std::os::fd::AsFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = memory_create(file.as_fd()).unwrap_err();
        assert_eq!(error.errno, Errno::ENOTTY);
        assert!(
            error.to_string().starts_with("allocating memory: "),
            "{error}"
        );
    }
}
