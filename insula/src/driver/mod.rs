//! Access to `insula.ko`: the only place with ioctls, mappings and `unsafe`.
//!
//! Typed descriptors over `/dev/insula`. Nothing here decides anything; what the module says is
//! passed on. What a node can write is never borrowed, only copied (see [`Mapping`]).

mod borrowed;
mod channel;
mod ioctl;
mod lender;
mod mapping;
mod memory;
mod node;
mod open;
mod refusal;
mod space;
mod tap;
mod tsc;

use std::os::fd::{AsFd, OwnedFd};

use insula_abi as abi;
use nix::errno::Errno;

pub use borrowed::Borrowed;
pub use channel::{Channel, RingWords, Waited};
pub use lender::Lender;
pub use mapping::{MapError, Mapping, OutOfRange, Stretch};
pub use memory::Memory;
pub use node::Node;
pub use open::{DEVICE, OpenError};
pub use refusal::CallError;
pub use space::{ProxyError, ProxyRegion, ProxyStart, Space};
pub use tap::Tap;
pub use tsc::tsc;

/// A failure at the boundary to the module.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The module refused a call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A memory object could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// An access beyond a memory object.
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

impl DriverError {
    /// What the module answered, if this is its answer.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Call(error) | Self::Map(MapError::Call(error)) => Some(error.errno),
            Self::Map(MapError::Map(errno)) => Some(*errno),
            Self::Map(MapError::Size(_)) | Self::Range(_) => None,
        }
    }
}

/// The control descriptor, after both sides have agreed on a revision.
#[derive(Debug)]
pub struct Driver {
    fd: OwnedFd,
}

impl Driver {
    /// What the module sees and holds, and every core with its owner (`INSULA_MACHINE`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn machine(&self) -> Result<(abi::Machine, Vec<abi::Cpu>), CallError> {
        ioctl::machine(self.fd.as_fd())
    }

    /// Takes cores and memory into the pool, all or nothing (`INSULA_POOL_RESERVE`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn reserve(&self, cpus: &[u32], memory: abi::Request) -> Result<(), CallError> {
        ioctl::pool_reserve(self.fd.as_fd(), cpus, memory)
    }

    /// Gives back all of the pool that nothing uses (`INSULA_POOL_RELEASE`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn release(&self) -> Result<(), CallError> {
        ioctl::pool_release(self.fd.as_fd())
    }

    /// A new, empty memory object (`INSULA_MEMORY_CREATE`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn create_memory(&self) -> Result<Memory, CallError> {
        ioctl::memory_create(self.fd.as_fd()).map(Memory::new)
    }

    /// Keeps a memory object under a name, with bytes that describe it (`INSULA_IMAGE_ADD`).
    ///
    /// # Errors
    /// What the module answered; `EEXIST` when the name is taken.
    pub fn add_image(
        &self,
        name: &abi::Name,
        description: &[u8],
        memory: &Memory,
    ) -> Result<(), CallError> {
        ioctl::image_add(self.fd.as_fd(), name, description, memory.as_fd())
    }

    /// Keeps a memory object under a name as [`add_image`](Self::add_image) does, in the place of
    /// what has that name, if anything has (`INSULA_IMAGE_REPLACE`). At no moment is there none.
    ///
    /// # Errors
    /// What the module answered; the other one is kept.
    pub fn replace_image(
        &self,
        name: &abi::Name,
        description: &[u8],
        memory: &Memory,
    ) -> Result<(), CallError> {
        ioctl::image_replace(self.fd.as_fd(), name, description, memory.as_fd())
    }

    /// The memory object of an image (`INSULA_IMAGE_OPEN`).
    ///
    /// # Errors
    /// What the module answered; `ENOENT` when there is none of that name.
    pub fn open_image(&self, name: &abi::Name) -> Result<Memory, CallError> {
        ioctl::image_open(self.fd.as_fd(), name).map(Memory::new)
    }

    /// Forgets an image (`INSULA_IMAGE_REMOVE`).
    ///
    /// # Errors
    /// What the module answered; `ENOENT` when there is none of that name.
    pub fn remove_image(&self, name: &abi::Name) -> Result<(), CallError> {
        ioctl::image_remove(self.fd.as_fd(), name)
    }

    /// Names of all images, oldest first (`INSULA_IMAGE_LIST`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn image_names(&self) -> Result<Vec<abi::Name>, CallError> {
        ioctl::image_list(self.fd.as_fd())
    }

    /// Takes cores for a node that goes with its descriptor until it is started
    /// (`INSULA_NODE_CREATE`). The first of `cpus` boots.
    ///
    /// # Errors
    /// What the module answered; `EEXIST` when the name, `EBUSY` when a core is taken.
    pub fn create_node(
        &self,
        name: &abi::Name,
        description: &[u8],
        cpus: &[u32],
        memory: &Memory,
    ) -> Result<Node, CallError> {
        ioctl::node_create(self.fd.as_fd(), name, description, cpus, memory.as_fd()).map(Node::new)
    }

    /// A node that was started (`INSULA_NODE_OPEN`).
    ///
    /// # Errors
    /// What the module answered; `ENOENT` when there is none of that name.
    pub fn open_node(&self, name: &abi::Name) -> Result<Node, CallError> {
        ioctl::node_open(self.fd.as_fd(), name).map(Node::new)
    }

    /// In a node: its end of a channel, as soon as the base has opened its own (`INSULA_CHANNEL_OPEN`).
    ///
    /// # Errors
    /// What the module answered; `ENOENT` when the node has no such channel, `ENOTTY` in the base.
    pub fn open_channel(&self, index: u32) -> Result<Channel, CallError> {
        ioctl::channel_open(self.fd.as_fd(), index).map(|(fd, slots)| Channel::new(fd, slots))
    }

    /// In a node: memory of the base that a lender of that number grants, `size` bytes from its
    /// `address` on, a multiple of 4096 (`INSULA_BORROW`). What lies there may come and go.
    ///
    /// # Errors
    /// What the module or the kernel answered; `ENOTTY` in the base.
    pub fn borrow(&self, lender: u32, address: u64, size: usize) -> Result<Borrowed, MapError> {
        let fd = ioctl::borrow(self.fd.as_fd(), lender)?;
        Borrowed::map(&fd, address, size).map_err(MapError::Map)
    }

    /// Names of all nodes, oldest first (`INSULA_NODE_LIST`).
    ///
    /// # Errors
    /// What the module answered.
    pub fn node_names(&self) -> Result<Vec<abi::Name>, CallError> {
        ioctl::node_list(self.fd.as_fd())
    }
}
