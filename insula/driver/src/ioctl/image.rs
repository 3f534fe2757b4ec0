//! Images.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use insula_abi as abi;
use insula_abi::ioctl;

use super::{Call, CallResult, capacity, names};

pub(crate) fn image_add(
    fd: BorrowedFd<'_>,
    name: &abi::Name,
    description: &[u8],
    memory: BorrowedFd<'_>,
) -> CallResult<()> {
    let add = Call(ioctl::IMAGE_ADD, "INSULA_IMAGE_ADD");
    image_put(add, fd, name, description, memory)
}

pub(crate) fn image_replace(
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

pub(crate) fn image_open(fd: BorrowedFd<'_>, name: &abi::Name) -> CallResult<OwnedFd> {
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { Call(ioctl::IMAGE_OPEN, "INSULA_IMAGE_OPEN").descriptor(fd, &mut { *name }) }
}

pub(crate) fn image_remove(fd: BorrowedFd<'_>, name: &abi::Name) -> CallResult<()> {
    // SAFETY: `Name` is this request's structure and holds no address.
    unsafe { Call(ioctl::IMAGE_REMOVE, "INSULA_IMAGE_REMOVE").perform(fd, &mut { *name }) }
        .map(drop)
}

pub(crate) fn image_list(fd: BorrowedFd<'_>) -> CallResult<Vec<abi::Name>> {
    names(fd, Call(ioctl::IMAGE_LIST, "INSULA_IMAGE_LIST"))
}
