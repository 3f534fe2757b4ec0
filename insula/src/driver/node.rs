//! Nodes.

use std::os::fd::{AsFd, OwnedFd};

use insula_abi as abi;

use super::{CallError, Memory, ioctl};

/// A node: cores taken from the base and the right to start them.
///
/// One that was not started gives them back when this is dropped.
#[derive(Debug)]
pub struct Node {
    fd: OwnedFd,
}

impl Node {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Starts it; from now on it belongs to the module (`INSULA_NODE_START`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn start(&self, start: &abi::NodeStart) -> Result<(), CallError> {
        ioctl::node_start(self.fd.as_fd(), *start)
    }

    /// Stops its cores at once and gives them back (`INSULA_NODE_STOP`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn stop(&self, reason: abi::Reason) -> Result<(), CallError> {
        ioctl::node_stop(self.fd.as_fd(), reason)
    }

    /// Sends an interrupt to one of its cores, counted from 0 for the first, with a vector from 32
    /// to 255 (`INSULA_NODE_INTERRUPT`).
    ///
    /// # Errors
    /// What the module answered; `EALREADY` when it does not run.
    pub fn interrupt(&self, index: u32, vector: u32) -> Result<(), CallError> {
        ioctl::node_interrupt(self.fd.as_fd(), index, vector)
    }

    /// What the module knows of it, and its cores (`INSULA_NODE_INFO`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn info(&self) -> Result<(abi::NodeInfo, Vec<abi::Cpu>), CallError> {
        ioctl::node_info(self.fd.as_fd())
    }

    /// Forgets it and gives its memory back (`INSULA_NODE_REMOVE`).
    ///
    /// # Errors
    /// What the module answered; `EBUSY` while it runs.
    pub fn remove(&self) -> Result<(), CallError> {
        ioctl::node_remove(self.fd.as_fd())
    }

    /// Its memory object (`INSULA_NODE_MEMORY`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn memory(&self) -> Result<Memory, CallError> {
        ioctl::node_memory(self.fd.as_fd()).map(Memory::new)
    }

    /// The bytes that describe it (`INSULA_DESCRIPTION`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn description(&self) -> Result<Vec<u8>, CallError> {
        ioctl::description(self.fd.as_fd())
    }
}
