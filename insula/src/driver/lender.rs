//! Memory of this process that a node uses for a while.

use std::os::fd::{AsFd, OwnedFd};

use insula_abi as abi;

use super::{CallError, ioctl};

/// Lends memory of this process to a node. All that it has granted is taken back when it is dropped.
#[derive(Debug)]
pub struct Lender {
    fd: OwnedFd,
    number: u32,
}

impl Lender {
    pub(super) fn new(fd: OwnedFd, number: u32) -> Self {
        Self { fd, number }
    }

    /// By which the node knows it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Lets the node use what lies at an address of this process, whatever it is, until it is taken
    /// back (`INSULA_FRAMES_GRANT`). Both numbers are multiples of 4096. Answers the pages' physical
    /// addresses, as they were just now: the base may take any back at any moment, and the node
    /// knows of it.
    ///
    /// # Errors
    /// What the module answered; `EFAULT` when there is no memory, `EPERM` or `EFAULT` when the
    /// process itself may not write it, `ENOTCONN` when the node's kernel does not listen, `EPIPE`
    /// when the node has ended, `EBUSY` when the base changes the range all the time.
    pub fn grant(&self, address: u64, size: u64, writable: bool) -> Result<Vec<u64>, CallError> {
        let flags = if writable {
            abi::frames::FRAMES_WRITABLE
        } else {
            0
        };
        ioctl::frames_grant(self.fd.as_fd(), address, size, flags)
    }

    /// Takes a range back: when this returns the node does not use it any more
    /// (`INSULA_FRAMES_TAKE`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn take(&self, address: u64, size: u64) -> Result<(), CallError> {
        ioctl::frames_take(self.fd.as_fd(), abi::frames::FramesTake { address, size })
    }
}
