//! Nodes.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use insula_abi as abi;
use nix::errno::Errno;

use super::{CallError, Channel, GrantTable, Memory, Mirror, ioctl};

/// A node: cores of the machine and the right to start them.
///
/// Dropping it before the node was started returns the cores to the base.
#[derive(Debug)]
pub struct Node {
    fd: OwnedFd,
}

impl Node {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Defines its channels, before its start (`INSULA_NODE_CHANNELS`).
    ///
    /// # Errors
    /// The module's error.
    pub fn lay_out_channels(&self, channels: abi::channel::Channels) -> Result<(), CallError> {
        ioctl::node_channels(self.fd.as_fd(), channels)
    }

    /// Opens the base's endpoint of one of its channels, in a new session (`INSULA_CHANNEL_OPEN`).
    ///
    /// # Errors
    /// The module's error; `ENOENT` when it has no such channel, `EBUSY` when an endpoint of it is
    /// still open, `EPIPE` when it has stopped.
    pub fn open_channel(&self, index: u32) -> Result<Channel, CallError> {
        ioctl::channel_open(self.fd.as_fd(), index).map(|(fd, slots)| Channel::new(fd, slots))
    }

    /// Creates a grant table, by which this process grants memory to the node. The base's memory
    /// management revokes what it needs, and a node that does not comply within `timeout` (10 ms to
    /// 10 s) is stopped (`INSULA_NODE_GRANT_TABLE`).
    ///
    /// # Errors
    /// The module's error; `EPIPE` when it does not run, `ENOENT` when it has no channel for
    /// grants.
    pub fn create_grant_table(
        &self,
        timeout: std::time::Duration,
    ) -> Result<GrantTable, CallError> {
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        ioctl::node_grant_table(self.fd.as_fd(), timeout_ms).map(|(fd, id)| GrantTable::new(fd, id))
    }

    /// Defines its delegation area, before its start (`INSULA_NODE_DELEGATION`).
    ///
    /// # Errors
    /// The module's error.
    pub fn lay_out_delegation(&self, place: abi::lwk::DelegationPlace) -> Result<(), CallError> {
        ioctl::node_delegation(self.fd.as_fd(), place)
    }

    /// Creates a mirror: the mapping of a program's address space into this process, its future
    /// proxy, in that range of addresses (`INSULA_MIRROR_CREATE`).
    /// # Errors
    /// The module's error; `EOPNOTSUPP` when it has no delegation area, `EAGAIN` when its kernel
    /// does not accept programs yet, `EPIPE` when it does not run, `ENOSPC` when its area is full.
    pub fn create_mirror(&self, program: Range<u64>) -> Result<Mirror, CallError> {
        let created = ioctl::mirror_create(self.fd.as_fd(), program, 0);
        created.map(|(fd, slot)| Mirror::new(fd, slot))
    }

    /// Creates a mirror for another process, which becomes its proxy by `INSULA_MIRROR_ADOPT`: its
    /// descriptor, and the slot of the process's first thread.
    ///
    /// # Errors
    /// As of [`create_mirror`](Self::create_mirror).
    pub fn create_mirror_for_other(
        &self,
        program: Range<u64>,
    ) -> Result<(OwnedFd, u32), CallError> {
        ioctl::mirror_create(self.fd.as_fd(), program, abi::lwk::MIRROR_FOR_OTHER)
    }

    /// Starts it; from now on it belongs to the module (`INSULA_NODE_START`).
    ///
    /// # Errors
    /// The module's error.
    pub fn start(&self, start: &abi::NodeStart) -> Result<(), CallError> {
        ioctl::node_start(self.fd.as_fd(), *start)
    }

    /// Makes this descriptor the supervisor's: as long as it is open, the cores of a node that
    /// stops for one of the reasons in `keep_cpus` are kept for its restart
    /// (`INSULA_NODE_SUPERVISE`). May be repeated with other values.
    ///
    /// # Errors
    /// The module's error; `EBUSY` when another descriptor supervises it.
    pub fn supervise(&self, supervise: abi::NodeSupervise) -> Result<(), CallError> {
        ioctl::node_supervise(self.fd.as_fd(), supervise)
    }

    /// Makes its next or present stop final: cores that are kept for a restart go back
    /// (`INSULA_NODE_RETIRE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn retire(&self) -> Result<(), CallError> {
        ioctl::node_retire(self.fd.as_fd())
    }

    /// Gives it the name of another node, and that one its own, in one step
    /// (`INSULA_NODE_EXCHANGE_NAMES`).
    ///
    /// # Errors
    /// The module's error; `ENOENT` when no node has that name.
    pub fn exchange_names(&self, with: &abi::Name) -> Result<(), CallError> {
        ioctl::node_exchange_names(self.fd.as_fd(), with)
    }

    /// Gives it another name (`INSULA_NODE_RENAME`).
    ///
    /// # Errors
    /// The module's error; `EEXIST` when another node has that name.
    pub fn rename(&self, to: &abi::Name) -> Result<(), CallError> {
        ioctl::node_rename(self.fd.as_fd(), to)
    }

    /// Creates it again after it has stopped: with its cores, its memory cleared, and this
    /// description. If this is dropped before the start, it is stopped again
    /// (`INSULA_NODE_RECREATE`).
    ///
    /// # Errors
    /// The module's error; `ECANCELED` when `flags` has [`abi::RECREATE_UNLESS_RETIRED`] and it is
    /// retired, `EBUSY` when it is not stopped or one of its cores is in use.
    pub fn recreate(&self, description: &[u8], flags: u32) -> Result<(), CallError> {
        ioctl::node_recreate(self.fd.as_fd(), description, flags)
    }

    /// Adds these cores and all chunks of this object to it while it runs, all or none
    /// (`INSULA_NODE_GROW`). The object is empty then.
    ///
    /// # Errors
    /// The module's error; `EALREADY` when it does not run, `EBUSY` when a core is in use.
    pub fn grow(&self, cpus: &[u32], memory: Option<&Memory>) -> Result<(), CallError> {
        ioctl::node_grow(self.fd.as_fd(), cpus, memory.map(AsFd::as_fd))
    }

    /// Removes these cores and the last `chunks` of its memory, which its kernel has taken offline
    /// (`INSULA_NODE_SHRINK`).
    ///
    /// # Errors
    /// The module's error; `EALREADY` when it does not run, `EINVAL` when they are not its own, or
    /// it was started with that memory, or booted on that core.
    pub fn shrink(&self, cpus: &[u32], chunks: u32) -> Result<(), CallError> {
        ioctl::node_shrink(self.fd.as_fd(), cpus, chunks)
    }

    /// Adds memory that other nodes may have as well, before it is started (`INSULA_NODE_SHARE`).
    ///
    /// # Errors
    /// The module's error; `EBUSY` when the object is not a shared one.
    pub fn share(&self, memory: &Memory) -> Result<(), CallError> {
        ioctl::node_share(self.fd.as_fd(), memory.as_fd())
    }

    /// Opens the memory that it shares with other nodes (`INSULA_NODE_SHARED`).
    ///
    /// # Errors
    /// The module's error; `ENODATA` when there is none.
    pub fn shared(&self) -> Result<Memory, CallError> {
        ioctl::node_shared(self.fd.as_fd()).map(Memory::new)
    }

    /// Chunks of that memory, in order of offset; none if it shares none.
    ///
    /// # Errors
    /// The module's error.
    pub fn shared_chunks(&self) -> Result<Vec<abi::Chunk>, CallError> {
        match self.shared() {
            Err(error) if error.errno == Errno::ENODATA => Ok(Vec::new()),
            shared => shared?.chunks(),
        }
    }

    /// Confines it by a monitor, before its start (`INSULA_NODE_CONFINE`).
    ///
    /// # Errors
    /// The module's error; `EOPNOTSUPP` when the processors cannot, or it has devices.
    pub fn confine(
        &self,
        memory: &Memory,
        monitor: abi::monitor::NodeConfine,
    ) -> Result<(), CallError> {
        let memory = memory.as_fd().as_raw_fd();
        ioctl::node_confine(
            self.fd.as_fd(),
            abi::monitor::NodeConfine { memory, ..monitor },
        )
    }

    /// Opens its monitor's memory (`INSULA_NODE_MONITOR`).
    ///
    /// # Errors
    /// The module's error; `ENODATA` when it is not confined.
    pub fn monitor(&self) -> Result<Memory, CallError> {
        ioctl::node_monitor(self.fd.as_fd()).map(Memory::new)
    }

    /// Has its monitor pause all of its cores (`INSULA_NODE_PAUSE`).
    ///
    /// # Errors
    /// The module's error; `EOPNOTSUPP` when it is not confined, `EALREADY` when it does not run.
    pub fn pause(&self) -> Result<(), CallError> {
        ioctl::node_pause(self.fd.as_fd())
    }

    /// Has its monitor resume its cores (`INSULA_NODE_RESUME`).
    ///
    /// # Errors
    /// As of [`pause`](Self::pause).
    pub fn resume(&self) -> Result<(), CallError> {
        ioctl::node_resume(self.fd.as_fd())
    }

    /// Stops its cores at once (`INSULA_NODE_STOP`).
    ///
    /// # Errors
    /// The module's error.
    pub fn stop(&self, reason: abi::Reason) -> Result<(), CallError> {
        ioctl::node_stop(self.fd.as_fd(), reason)
    }

    /// Sends an interrupt to one of its cores, counted from 0 for the first, with a vector from 32
    /// to 255, or [`abi::VECTOR_NMI`] (`INSULA_NODE_INTERRUPT`; the header says when that is
    /// allowed).
    ///
    /// # Errors
    /// The module's error; `EALREADY` when it does not run.
    pub fn interrupt(&self, index: u32, vector: u32) -> Result<(), CallError> {
        ioctl::node_interrupt(self.fd.as_fd(), index, vector)
    }

    /// Takes a PCI function from the base for it, before it is started (`INSULA_NODE_DEVICE_ADD`).
    ///
    /// # Errors
    /// The module's error; `EBUSY` when another node has it, `EXDEV` when it shares its bus or the
    /// IOMMU cannot tell it from another device, `EOPNOTSUPP` when it cannot be passed through.
    pub fn add_device(&self, device: abi::Device) -> Result<(), CallError> {
        ioctl::node_device_add(self.fd.as_fd(), device)
    }

    /// The PCI functions that it has or, if stopped, had (`INSULA_NODE_DEVICES`).
    ///
    /// # Errors
    /// The module's error.
    pub fn devices(&self) -> Result<Vec<abi::Device>, CallError> {
        ioctl::node_devices(self.fd.as_fd())
    }

    /// Its state as the module knows it, and its cores (`INSULA_NODE_INFO`).
    ///
    /// # Errors
    /// The module's error.
    pub fn info(&self) -> Result<(abi::NodeInfo, Vec<abi::Cpu>), CallError> {
        ioctl::node_info(self.fd.as_fd())
    }

    /// Removes it and frees its memory (`INSULA_NODE_REMOVE`).
    ///
    /// # Errors
    /// The module's error; `EBUSY` while it runs.
    pub fn remove(&self) -> Result<(), CallError> {
        ioctl::node_remove(self.fd.as_fd())
    }

    /// Opens its memory object (`INSULA_NODE_MEMORY`).
    ///
    /// # Errors
    /// The module's error.
    pub fn memory(&self) -> Result<Memory, CallError> {
        ioctl::node_memory(self.fd.as_fd()).map(Memory::new)
    }

    /// Its description (`INSULA_DESCRIPTION`).
    ///
    /// # Errors
    /// The module's error.
    pub fn description(&self) -> Result<Vec<u8>, CallError> {
        ioctl::description(self.fd.as_fd())
    }
}

impl AsFd for Node {
    /// The C header says what [`poll`](nix::poll) reports.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Node> for OwnedFd {
    /// For passing it on to another process.
    fn from(node: Node) -> Self {
        node.fd
    }
}

impl From<OwnedFd> for Node {
    /// A node by a descriptor that another process has passed on. If it is none of a node, every
    /// call fails.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}
