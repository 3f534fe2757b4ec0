//! Nodes.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;

use super::{Call, CallResult, address, capacity, fill};

pub(crate) fn node_create(
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

pub(crate) fn node_open(fd: BorrowedFd<'_>, name: &abi::Name) -> CallResult<OwnedFd> {
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { Call(ioctl::NODE_OPEN, "INSULA_NODE_OPEN").descriptor(fd, &mut { *name }) }
}

pub(crate) fn node_start(fd: BorrowedFd<'_>, mut start: abi::NodeStart) -> CallResult<()> {
    // SAFETY: `NodeStart` is this request's structure; its addresses are physical, and the module
    // checks that they are in the node's own memory.
    unsafe { Call(ioctl::NODE_START, "INSULA_NODE_START").perform(fd, &mut start) }.map(drop)
}

pub(crate) fn node_stop(fd: BorrowedFd<'_>, reason: abi::Reason) -> CallResult<()> {
    let mut stop = abi::NodeStop {
        reason,
        reserved: 0,
    };
    // SAFETY: `NodeStop` is this request's structure and holds no address.
    unsafe { Call(ioctl::NODE_STOP, "INSULA_NODE_STOP").perform(fd, &mut stop) }.map(drop)
}

pub(crate) fn node_interrupt(fd: BorrowedFd<'_>, index: u32, vector: u32) -> CallResult<()> {
    let mut interrupt = abi::NodeInterrupt { index, vector };
    let call = Call(ioctl::NODE_INTERRUPT, "INSULA_NODE_INTERRUPT");
    // SAFETY: `NodeInterrupt` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut interrupt) }.map(drop)
}

pub(crate) fn node_supervise(
    fd: BorrowedFd<'_>,
    mut supervise: abi::NodeSupervise,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_SUPERVISE, "INSULA_NODE_SUPERVISE");
    // SAFETY: `NodeSupervise` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut supervise) }.map(drop)
}

pub(crate) fn node_retire(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_RETIRE, "INSULA_NODE_RETIRE")
        .bare(fd)
        .map(drop)
}

pub(crate) fn node_exchange_names(fd: BorrowedFd<'_>, with: &abi::Name) -> CallResult<()> {
    let call = Call(ioctl::NODE_EXCHANGE_NAMES, "INSULA_NODE_EXCHANGE_NAMES");
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut { *with }) }.map(drop)
}

pub(crate) fn node_rename(fd: BorrowedFd<'_>, to: &abi::Name) -> CallResult<()> {
    let call = Call(ioctl::NODE_RENAME, "INSULA_NODE_RENAME");
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut { *to }) }.map(drop)
}

pub(crate) fn node_recreate(fd: BorrowedFd<'_>, description: &[u8], flags: u32) -> CallResult<()> {
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

pub(crate) fn node_info(fd: BorrowedFd<'_>) -> CallResult<(abi::NodeInfo, Vec<abi::Cpu>)> {
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

pub(crate) fn node_remove(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_REMOVE, "INSULA_NODE_REMOVE")
        .bare(fd)
        .map(drop)
}

pub(crate) fn node_memory(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::NODE_MEMORY, "INSULA_NODE_MEMORY").descriptor(fd, &mut 0_u64) }
}

pub(crate) fn node_grow(
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

pub(crate) fn node_share(fd: BorrowedFd<'_>, memory: BorrowedFd<'_>) -> CallResult<()> {
    let mut share = abi::NodeShare {
        memory: memory.as_raw_fd(),
        flags: 0,
    };
    // SAFETY: `NodeShare` is this request's structure and holds no address.
    unsafe { Call(ioctl::NODE_SHARE, "INSULA_NODE_SHARE").perform(fd, &mut share) }.map(drop)
}

pub(crate) fn node_confine(
    fd: BorrowedFd<'_>,
    mut confine: abi::monitor::NodeConfine,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_CONFINE, "INSULA_NODE_CONFINE");
    // SAFETY: `NodeConfine` is this request's structure; its addresses are the monitor's, in whose
    // memory the module checks them.
    unsafe { call.perform(fd, &mut confine) }.map(drop)
}

pub(crate) fn node_monitor(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::NODE_MONITOR, "INSULA_NODE_MONITOR").descriptor(fd, &mut 0_u64) }
}

pub(crate) fn node_pause(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_PAUSE, "INSULA_NODE_PAUSE")
        .bare(fd)
        .map(drop)
}

pub(crate) fn node_resume(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::NODE_RESUME, "INSULA_NODE_RESUME")
        .bare(fd)
        .map(drop)
}

pub(crate) fn node_shared(fd: BorrowedFd<'_>) -> CallResult<OwnedFd> {
    // SAFETY: an `_IO` request: no structure.
    unsafe { Call(ioctl::NODE_SHARED, "INSULA_NODE_SHARED").descriptor(fd, &mut 0_u64) }
}

pub(crate) fn node_shrink(fd: BorrowedFd<'_>, cpus: &[u32], chunks: u32) -> CallResult<()> {
    let mut shrink = abi::NodeShrink {
        cpus: cpus.as_ptr() as u64,
        cpus_count: capacity(cpus),
        chunks,
    };
    // SAFETY: `NodeShrink` is this request's structure; it names `cpus`, which is only read.
    unsafe { Call(ioctl::NODE_SHRINK, "INSULA_NODE_SHRINK").perform(fd, &mut shrink) }.map(drop)
}

pub(crate) fn node_device_add(fd: BorrowedFd<'_>, mut device: abi::Device) -> CallResult<()> {
    let call = Call(ioctl::NODE_DEVICE_ADD, "INSULA_NODE_DEVICE_ADD");
    // SAFETY: `Device` is this request's structure and holds no address.
    unsafe { call.perform(fd, &mut device) }.map(drop)
}

pub(crate) fn node_devices(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Device>> {
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
