//! Memory of this process that a node may use.

use std::os::fd::{AsFd, OwnedFd};

use insula_abi as abi;

use super::{CallError, ioctl};

/// A grant table: the memory of this process that one node may use. Dropping it revokes all grants.
#[derive(Debug)]
pub struct GrantTable {
    fd: OwnedFd,
    id: u32,
}

impl GrantTable {
    pub(super) fn new(fd: OwnedFd, id: u32) -> Self {
        Self { fd, id }
    }

    /// The id by which the node imports from it.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Grants the node the memory at an address of this process until it is revoked
    /// (`INSULA_GRANT_ADD`). Both numbers are multiples of 4096. Returns the pages' present
    /// physical addresses: the base may move or reclaim any page, and the node is told then.
    ///
    /// # Errors
    /// The module's error; `EFAULT` when there is no memory, `EPERM` or `EFAULT` when the process
    /// itself may not write it, `ENOTCONN` when the node's kernel does not handle grants, `EPIPE`
    /// when the node has stopped, `EBUSY` when the base changes the range all the time.
    pub fn grant(&self, address: u64, size: u64, writable: bool) -> Result<Vec<u64>, CallError> {
        let flags = if writable {
            abi::grant::GRANT_WRITABLE
        } else {
            0
        };
        ioctl::grant_add(self.fd.as_fd(), address, size, flags)
    }

    /// Revokes a range: when this returns, the node does not use it any more
    /// (`INSULA_GRANT_REVOKE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn revoke(&self, address: u64, size: u64) -> Result<(), CallError> {
        ioctl::grant_revoke(self.fd.as_fd(), abi::grant::GrantRevoke { address, size })
    }
}
