//! A program that leaves its node, by the mirror's descriptor of its proxy.

use std::os::fd::BorrowedFd;

use insula_abi::lwk::MIRROR_LEAVE_CANCEL;

use super::{CallError, ioctl};

/// Has the program wait, and its kernel write its state. Returns the address and the size of that, in the
/// memory of the program (`INSULA_MIRROR_LEAVE`).
///
/// # Errors
/// The module's error; `EOPNOTSUPP` when it cannot leave, `ETIMEDOUT` when a thread does not stop.
pub fn begin(mirror: BorrowedFd<'_>) -> Result<(u64, u64), CallError> {
    let left = ioctl::mirror_leave(mirror, 0)?;
    Ok((left.address, left.size))
}

/// Has the program go on where it is.
///
/// # Errors
/// The module's error.
pub fn cancel(mirror: BorrowedFd<'_>) -> Result<(), CallError> {
    ioctl::mirror_leave(mirror, MIRROR_LEAVE_CANCEL).map(drop)
}
