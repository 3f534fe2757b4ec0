//! Channels between nodes, and with the base.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;

use super::{Call, CallResult};

pub(crate) fn node_channels(
    fd: BorrowedFd<'_>,
    mut channels: abi::channel::Channels,
) -> CallResult<()> {
    let call = Call(ioctl::NODE_CHANNELS, "INSULA_NODE_CHANNELS");
    // SAFETY: `Channels` is this request's structure; its address is physical, and the module
    // checks that it is in the node's own memory.
    unsafe { call.perform(fd, &mut channels) }.map(drop)
}

/// Opens an endpoint: its descriptor and the slots of its rings.
pub(crate) fn channel_open(fd: BorrowedFd<'_>, index: u32) -> CallResult<(OwnedFd, u32)> {
    let mut open = abi::channel::ChannelOpen { index, slots: 0 };
    let call = Call(ioctl::CHANNEL_OPEN, "INSULA_CHANNEL_OPEN");
    // SAFETY: `ChannelOpen` is this request's structure and holds no address.
    let fd = unsafe { call.descriptor(fd, &mut open) }?;
    Ok((fd, open.slots))
}

pub(crate) fn channel_ring(fd: BorrowedFd<'_>) -> CallResult<()> {
    Call(ioctl::CHANNEL_RING, "INSULA_CHANNEL_RING")
        .bare(fd)
        .map(drop)
}

/// Binds an event of a channel to two eventfds, or unbinds it.
pub(crate) fn channel_eventfd(
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
