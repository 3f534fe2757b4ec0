//! Access to `insula.ko`: the only place with its ioctls and mappings.
//!
//! Typed descriptors over `/dev/insula`, and the endpoints of [`channel`]s over them. Nothing here
//! decides anything; the module's answers are passed on. Memory that a node can write is never
//! borrowed, only copied (see [`Mapping`]).

mod base_memory;
mod call_error;
pub mod channel;
mod grant_table;
mod imported_grant;
mod ioctl;
pub mod leave;
mod mapping;
mod memory;
mod mirror;
pub mod name;
mod node;
mod open;
mod tap;
mod tsc;
mod vhost_net;

use std::os::fd::{AsFd, OwnedFd};

use insula_abi as abi;
use insula_channel::InvalidRing;
use nix::errno::Errno;

pub use base_memory::{BaseMapping, BaseMemory, ReservedMapping};
pub use call_error::CallError;
pub use channel::{Channel, RingWords, Waited};
pub use grant_table::GrantTable;
pub use imported_grant::ImportedGrant;
pub use mapping::{Extent, Mapping, OutOfRange};
pub use memory::Memory;
pub use mirror::{Mirror, OtherProxy, ProxyRegion, ProxyStart, RegionLayout};
pub use node::Node;
pub use open::DEVICE;
pub use tap::Tap;
pub use tsc::tsc;
pub use vhost_net::set_busy_poll;

/// A failure at the boundary to the module: the cause of an error, which knows what it prevents.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The module, or the kernel, refused a call.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A memory object is empty, or larger than the address space.
    #[error("a memory object of {0} bytes cannot be mapped")]
    Size(u64),
    /// An access outside of a memory object.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The module reported an impossible size of a channel's rings.
    #[error(transparent)]
    Rings(#[from] InvalidRing),
}

impl DriverError {
    /// The error number, if the module or the kernel returned one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Call(error) => Some(error.errno),
            Self::Size(_) | Self::Range(_) | Self::Rings(_) => None,
        }
    }
}

/// The control descriptor, after both sides have agreed on a revision.
#[derive(Debug)]
pub struct Driver {
    fd: OwnedFd,
}

impl Driver {
    /// The machine as the module sees it, and every core with its owner (`INSULA_MACHINE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn machine(&self) -> Result<(abi::Machine, Vec<abi::Cpu>), CallError> {
        ioctl::machine(self.fd.as_fd())
    }

    /// Reserves cores and memory in the pool, all or nothing (`INSULA_POOL_RESERVE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn reserve(&self, cpus: &[u32], memory: abi::Request) -> Result<(), CallError> {
        ioctl::pool_reserve(self.fd.as_fd(), cpus, memory)
    }

    /// Frees everything in the pool that is not in use (`INSULA_POOL_RELEASE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn release(&self) -> Result<(), CallError> {
        ioctl::pool_release(self.fd.as_fd())
    }

    /// Creates an empty memory object (`INSULA_MEMORY_CREATE`).
    ///
    /// # Errors
    /// The module's error.
    pub fn create_memory(&self) -> Result<Memory, CallError> {
        ioctl::memory_create(self.fd.as_fd()).map(Memory::new)
    }

    /// Creates an object that shows an image's memory at these physical addresses of a node, in order
    /// of offset, until it is written (`INSULA_MEMORY_SHOW`).
    ///
    /// # Errors
    /// The module's error; `EINVAL` when it is not an image's, or smaller than the chunks.
    pub fn show_memory(&self, image: &Memory, chunks: &[abi::Chunk]) -> Result<Memory, CallError> {
        ioctl::memory_show(self.fd.as_fd(), image.as_fd(), chunks).map(Memory::new)
    }

    /// Opens the base's memory (`INSULA_BASE_MEMORY`).
    ///
    /// # Errors
    /// The module's error; `EPERM` when the base is locked down.
    pub fn base_memory(&self) -> Result<BaseMemory, CallError> {
        ioctl::base_memory(self.fd.as_fd()).map(BaseMemory::new)
    }

    /// Registers a memory object as an image, with a name and a description (`INSULA_IMAGE_ADD`).
    ///
    /// # Errors
    /// The module's error; `EEXIST` when the name is in use.
    pub fn add_image(
        &self,
        name: &abi::Name,
        description: &[u8],
        memory: &Memory,
    ) -> Result<(), CallError> {
        ioctl::image_add(self.fd.as_fd(), name, description, memory.as_fd())
    }

    /// Registers a memory object as [`add_image`](Self::add_image) does, and replaces an image of
    /// the same name atomically (`INSULA_IMAGE_REPLACE`).
    ///
    /// # Errors
    /// The module's error; the existing image is kept.
    pub fn replace_image(
        &self,
        name: &abi::Name,
        description: &[u8],
        memory: &Memory,
    ) -> Result<(), CallError> {
        ioctl::image_replace(self.fd.as_fd(), name, description, memory.as_fd())
    }

    /// Opens the memory object of an image (`INSULA_IMAGE_OPEN`).
    ///
    /// # Errors
    /// The module's error; `ENOENT` when there is no image of that name.
    pub fn open_image(&self, name: &abi::Name) -> Result<Memory, CallError> {
        ioctl::image_open(self.fd.as_fd(), name).map(Memory::new)
    }

    /// Removes an image (`INSULA_IMAGE_REMOVE`).
    ///
    /// # Errors
    /// The module's error; `ENOENT` when there is no image of that name.
    pub fn remove_image(&self, name: &abi::Name) -> Result<(), CallError> {
        ioctl::image_remove(self.fd.as_fd(), name)
    }

    /// Names of all images, oldest first (`INSULA_IMAGE_LIST`).
    ///
    /// # Errors
    /// The module's error.
    pub fn image_names(&self) -> Result<Vec<abi::Name>, CallError> {
        ioctl::image_list(self.fd.as_fd())
    }

    /// Creates a node and takes its cores, until it is started only for as long as the descriptor
    /// is open (`INSULA_NODE_CREATE`). The first of `cpus` boots.
    ///
    /// # Errors
    /// The module's error; `EEXIST` when the name, `EBUSY` when a core is in use.
    pub fn create_node(
        &self,
        name: &abi::Name,
        description: &[u8],
        cpus: &[u32],
        memory: &Memory,
    ) -> Result<Node, CallError> {
        let (fd, memory) = (self.fd.as_fd(), memory.as_fd());
        let share = (0, abi::ShareBy::INTERRUPT);
        ioctl::node_create(fd, name, description, cpus, share, memory).map(Node::new)
    }

    /// Creates a node that shares the core `cpu` with the base, gets at most so many percent of its
    /// time, and is entered there in that way.
    ///
    /// # Errors
    /// As of [`Driver::create_node`]; `EOPNOTSUPP` when cores of this base cannot be shared.
    pub fn create_node_on_shared_core(
        &self,
        name: &abi::Name,
        description: &[u8],
        cpu: u32,
        share: (u16, abi::ShareBy),
        memory: &Memory,
    ) -> Result<Node, CallError> {
        let (fd, memory) = (self.fd.as_fd(), memory.as_fd());
        ioctl::node_create(fd, name, description, &[cpu], share, memory).map(Node::new)
    }

    /// Opens a node that was started (`INSULA_NODE_OPEN`).
    ///
    /// # Errors
    /// The module's error; `ENOENT` when there is no node of that name.
    pub fn open_node(&self, name: &abi::Name) -> Result<Node, CallError> {
        ioctl::node_open(self.fd.as_fd(), name).map(Node::new)
    }

    /// In a node: opens its endpoint of a channel, once the base has opened its own
    /// (`INSULA_CHANNEL_OPEN`).
    ///
    /// # Errors
    /// The module's error; `ENOENT` when the node has no such channel, `ENOTTY` in the base.
    pub fn open_channel(&self, index: u32) -> Result<Channel, CallError> {
        ioctl::channel_open(self.fd.as_fd(), index).map(|(fd, slots)| Channel::new(fd, slots))
    }

    /// In a node: imports memory of the base that a grant table of that id grants, `size` bytes
    /// from its `address` on, a multiple of 4096 (`INSULA_GRANT_IMPORT`). Grants may come and go.
    ///
    /// # Errors
    /// The module's or the kernel's error; `ENOTTY` in the base.
    pub fn import_grant(
        &self,
        table: u32,
        address: u64,
        size: usize,
    ) -> Result<ImportedGrant, CallError> {
        let fd = ioctl::grant_import(self.fd.as_fd(), table)?;
        ImportedGrant::map(&fd, address, size).map_err(CallError::of("mmap"))
    }

    /// Names of all nodes, oldest first (`INSULA_NODE_LIST`).
    ///
    /// # Errors
    /// The module's error.
    pub fn node_names(&self) -> Result<Vec<abi::Name>, CallError> {
        ioctl::node_list(self.fd.as_fd())
    }
}
