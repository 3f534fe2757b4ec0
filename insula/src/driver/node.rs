//! Nodes.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use insula_abi as abi;
use nix::errno::Errno;

use super::{CallError, Channel, Lender, Memory, Space, ioctl};

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

    /// Lays out its channels, before its start (`INSULA_NODE_CHANNELS`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn lay_out_channels(&self, channels: abi::channel::Channels) -> Result<(), CallError> {
        ioctl::node_channels(self.fd.as_fd(), channels)
    }

    /// The base's end of one of its channels, in a new session (`INSULA_CHANNEL_OPEN`).
    ///
    /// # Errors
    /// What the module answered; `ENOENT` when it has no such channel, `EBUSY` when an end of it is
    /// open from before, `EPIPE` when it runs no more.
    pub fn open_channel(&self, index: u32) -> Result<Channel, CallError> {
        ioctl::channel_open(self.fd.as_fd(), index).map(|(fd, slots)| Channel::new(fd, slots))
    }

    /// Lends memory of this process to it. The base's memory management takes back what it needs,
    /// and a node that does not give it back within `patience` (10 ms to 10 s) is stopped
    /// (`INSULA_NODE_LEND`).
    ///
    /// # Errors
    /// What the module answered; `EPIPE` when it does not run, `ENOENT` when it has no channel for
    /// it.
    pub fn lend(&self, patience: std::time::Duration) -> Result<Lender, CallError> {
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        ioctl::node_lend(self.fd.as_fd(), patience_ms).map(|(fd, number)| Lender::new(fd, number))
    }

    /// Lays out its delegation area, before its start (`INSULA_NODE_DELEGATION`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn lay_out_delegation(&self, place: abi::lwk::DelegationPlace) -> Result<(), CallError> {
        ioctl::node_delegation(self.fd.as_fd(), place)
    }

    /// A space for a program of which this process will be the proxy, in that range of addresses
    /// (`INSULA_SPACE_CREATE`).
    ///
    /// # Errors
    /// What the module answered; `EOPNOTSUPP` when it has no delegation area, `EAGAIN` when its
    /// kernel does not take programs yet, `EPIPE` when it does not run, `ENOSPC` when its area is
    /// full.
    pub fn create_space(&self, program: Range<u64>) -> Result<Space, CallError> {
        ioctl::space_create(self.fd.as_fd(), program).map(|(fd, desk)| Space::new(fd, desk))
    }

    /// Starts it; from now on it belongs to the module (`INSULA_NODE_START`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn start(&self, start: &abi::NodeStart) -> Result<(), CallError> {
        ioctl::node_start(self.fd.as_fd(), *start)
    }

    /// Makes this descriptor the node's supervisor's: as long as it is open, the cores of a node
    /// that ends for one of the reasons in `hold` are kept for its next start
    /// (`INSULA_NODE_SUPERVISE`). May be repeated, to say something else.
    ///
    /// # Errors
    /// What the module answered; `EBUSY` when another descriptor supervises it.
    pub fn supervise(&self, supervise: abi::NodeSupervise) -> Result<(), CallError> {
        ioctl::node_supervise(self.fd.as_fd(), supervise)
    }

    /// Lets its next end, or the one that it has come to, be for good: cores that are held go back
    /// (`INSULA_NODE_RETIRE`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn retire(&self) -> Result<(), CallError> {
        ioctl::node_retire(self.fd.as_fd())
    }

    /// Puts it together anew after it has stopped: with its cores, its memory cleared, and this
    /// description of it. Until it is started it goes back to being stopped when this is dropped
    /// (`INSULA_NODE_RECREATE`).
    ///
    /// # Errors
    /// What the module answered; `ECANCELED` when `flags` has [`abi::RECREATE_UNLESS_RETIRED`] and
    /// it is retired, `EBUSY` when it is not stopped or somebody has one of its cores.
    pub fn recreate(&self, description: &[u8], flags: u32) -> Result<(), CallError> {
        ioctl::node_recreate(self.fd.as_fd(), description, flags)
    }

    /// Makes these cores and all chunks of this object its own while it runs, all or none
    /// (`INSULA_NODE_GROW`). The object is empty then.
    ///
    /// # Errors
    /// What the module answered; `EALREADY` when it does not run, `EBUSY` when a core is taken.
    pub fn grow(&self, cpus: &[u32], memory: Option<&Memory>) -> Result<(), CallError> {
        ioctl::node_grow(self.fd.as_fd(), cpus, memory.map(AsFd::as_fd))
    }

    /// Takes back these cores and the last `chunks` of its memory, of which its kernel has let go
    /// (`INSULA_NODE_SHRINK`).
    ///
    /// # Errors
    /// What the module answered; `EALREADY` when it does not run, `EINVAL` when that is not its own,
    /// or it was started with that memory, or booted on that core.
    pub fn shrink(&self, cpus: &[u32], chunks: u32) -> Result<(), CallError> {
        ioctl::node_shrink(self.fd.as_fd(), cpus, chunks)
    }

    /// Lets it have memory that other nodes may have as well, before it is started
    /// (`INSULA_NODE_SHARE`).
    ///
    /// # Errors
    /// What the module answered; `EBUSY` when the object is somebody's own.
    pub fn share(&self, memory: &Memory) -> Result<(), CallError> {
        ioctl::node_share(self.fd.as_fd(), memory.as_fd())
    }

    /// The memory that it shares with other nodes (`INSULA_NODE_SHARED`).
    ///
    /// # Errors
    /// What the module answered; `ENODATA` when there is none.
    pub fn shared(&self) -> Result<Memory, CallError> {
        ioctl::node_shared(self.fd.as_fd()).map(Memory::new)
    }

    /// Where that memory lies, in order of offset; nowhere if there is none.
    ///
    /// # Errors
    /// What the module answered.
    pub fn shared_chunks(&self) -> Result<Vec<abi::Chunk>, CallError> {
        match self.shared() {
            Err(error) if error.errno == Errno::ENODATA => Ok(Vec::new()),
            shared => shared?.chunks(),
        }
    }

    /// Stops its cores at once (`INSULA_NODE_STOP`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn stop(&self, reason: abi::Reason) -> Result<(), CallError> {
        ioctl::node_stop(self.fd.as_fd(), reason)
    }

    /// Sends an interrupt to one of its cores, counted from 0 for the first, with a vector from 32
    /// to 255, or [`abi::VECTOR_NMI`] (`INSULA_NODE_INTERRUPT`; the header tells when that may be
    /// sent).
    ///
    /// # Errors
    /// What the module answered; `EALREADY` when it does not run.
    pub fn interrupt(&self, index: u32, vector: u32) -> Result<(), CallError> {
        ioctl::node_interrupt(self.fd.as_fd(), index, vector)
    }

    /// Takes a PCI function from the base for it, before it is started
    /// (`INSULA_NODE_DEVICE_ADD`).
    ///
    /// # Errors
    /// What the module answered; `EBUSY` when another node has it, `EXDEV` when it shares its bus
    /// or the IOMMU cannot tell it from another device, `EOPNOTSUPP` when it cannot be a node's.
    pub fn add_device(&self, device: abi::Device) -> Result<(), CallError> {
        ioctl::node_device_add(self.fd.as_fd(), device)
    }

    /// The PCI functions that it has or, if stopped, had (`INSULA_NODE_DEVICES`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn devices(&self) -> Result<Vec<abi::Device>, CallError> {
        ioctl::node_devices(self.fd.as_fd())
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

impl AsFd for Node {
    /// What [`poll`](nix::poll) tells of it is written in the C header.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Node> for OwnedFd {
    /// To be passed on to another process.
    fn from(node: Node) -> Self {
        node.fd
    }
}

impl From<OwnedFd> for Node {
    /// A node by a descriptor that another process has passed on. One that is no node's refuses
    /// every call.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}
