//! Why a node was not updated, and its state after it.

use insula_base::units::Size;
use insula_driver::DriverError;
use insula_driver::channel::{AttachError, ChannelError};
use insula_driver::name::Name;
use nix::errno::Errno;

use crate::FindError;
use crate::attachment::ResizeError;
use crate::memory::MemoryError;

/// Why a node was not updated.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// It was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It does not run.
    #[error(
        "the node '{0}' is not running; nothing was kept\n\
         only a running node can be updated; remove a stopped one and start another"
    )]
    NotRunning(Name),
    /// The node's record has another format.
    #[error(
        "the record of the node '{0}' cannot be read; nothing was touched\n\
         it was started by another version of insula: use that one"
    )]
    NoRecord(Name),
    /// No core would be left.
    #[error(
        "the node '{0}' cannot give up its boot core; nothing was touched\n\
         stop it with `insula stop {0}`"
    )]
    NoCore(Name),
    /// Its tables do not list as many cores.
    #[error(
        "the node '{name}' cannot have {requested} cores: it was started with room for {max}; \
         nothing was touched\n\
         start it again with room to grow: `insula run --max-cpus {requested}`"
    )]
    NoRoom {
        /// The node.
        name: Name,
        /// The requested number.
        requested: u64,
        /// The maximum.
        max: u64,
    },
    /// Not enough cores are free.
    #[error(
        "{requested} more cores were requested, but only {free} of those that the node '{name}' \
         can have are free; nothing was kept\n\
         request fewer, or stop a node: `insula machine info` shows the owner of each core"
    )]
    Taken {
        /// The node.
        name: Name,
        /// The requested number.
        requested: u32,
        /// The number of free ones.
        free: usize,
    },
    /// Other processes always took the cores first.
    #[error(
        "other processes took the chosen cores several times in a row; nothing was kept\n\
         try again when fewer nodes are being started"
    )]
    Contended,
    /// The size is not a multiple of the block size.
    #[error(
        "the kernel of the node '{name}' adds and removes memory in blocks of {block}: {requested} \
         is not a multiple; nothing was touched\n\
         request a multiple of it"
    )]
    Block {
        /// The node.
        name: Name,
        /// The requested number.
        requested: Size,
        /// The block size.
        block: Size,
    },
    /// More than was added would be removed.
    #[error(
        "the node '{name}' can only give up the {added} of memory that was added to it; \
         nothing was touched\n\
         request no more than that, in the sizes in which it was added"
    )]
    StartedWith {
        /// The node.
        name: Name,
        /// The memory added since its start.
        added: Size,
    },
    /// The memory is not available.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The base cannot free whole blocks.
    #[error(
        "{requested} of memory could not be allocated in whole blocks of {block}, which the node's \
         kernel needs: the base has too much of it in use; nothing was kept\n\
         request less, or reserve it early after boot with `insula machine reserve --memory`"
    )]
    NoBlocks {
        /// The requested size.
        requested: Size,
        /// The block size.
        block: Size,
    },
    /// The node has no insula.ko.
    #[error(
        "insula.ko does not answer in the node '{0}'; nothing was touched\n\
         its kernel needs insula.ko: `modprobe insula` there, with the package insula-dkms, or \
         `insmod`"
    )]
    NoModule(Name),
    /// Another update is in progress.
    #[error(
        "another update of the node '{0}' is in progress; nothing was touched\n\
         try again when it is done"
    )]
    Busy(Name),
    /// The node's module sent an invalid answer.
    #[error(
        "the module in the node '{0}' sent an invalid answer; nothing was touched\n\
         use the same version of insula in both"
    )]
    ProtocolError(Name),
    /// The backends of its devices cannot switch to the new memory.
    #[error(
        "the devices of the node '{name}' cannot switch to other memory: {source}; nothing was \
         changed\n\
         `insula inspect {name}` shows its devices"
    )]
    Devices {
        /// The node.
        name: Name,
        /// Why.
        source: ResizeError,
    },
    /// The node's kernel refused.
    #[error(
        "the kernel of the node '{name}' refused to {what}: {}; nothing was changed\n\
         `insula logs --tail 20 {name}` may show the cause", .why.desc()
    )]
    Refused {
        /// The node.
        name: Name,
        /// The action, as words that follow "to".
        what: String,
        /// Why.
        why: Errno,
    },
    /// The node's kernel refused, and refused the rollback as well.
    #[error(
        "the kernel of the node '{name}' refused to {what}: {}; what was added so far stays \
         with the node until it is removed\n\
         update it again, or restart it", .why.desc()
    )]
    RollbackFailed {
        /// The node.
        name: Name,
        /// The action, as words that follow "to".
        what: String,
        /// Why.
        why: Errno,
    },
    /// It does not answer in time.
    #[error(
        "the node '{name}' takes too long to {what}, and may still do it; what was added stays \
         with the node until it is removed\n\
         update it again: completed steps are not repeated"
    )]
    TimedOut {
        /// The node.
        name: Name,
        /// The action, as words that follow "to".
        what: String,
    },
    /// It has ended, or its insula.ko was unloaded.
    #[error(
        "the node '{0}' has ended, or its kernel has unloaded insula.ko; what was added stays \
         with the node until it is removed\n\
         `insula ps -a` shows its state"
    )]
    Disconnected(Name),
    /// Its channel failed.
    #[error(
        "the hotplug channel of the node '{name}' failed: {source}; what was added stays with the \
         node"
    )]
    Channel {
        /// The node.
        name: Name,
        /// Why.
        source: ChannelError,
    },
    /// Its channel failed.
    #[error("the node's hotplug channel cannot be used: {0}; nothing was touched")]
    Attach(#[from] AttachError),
    /// The module failed.
    #[error("the module failed: {0}\n`insula inspect` shows the node's cores and memory")]
    Driver(#[from] DriverError),
}

impl UpdateError {
    /// Whether the node's kernel is in its previous state.
    pub(super) fn is_rolled_back(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Devices { .. })
    }

    /// Makes the error of a failed rollback.
    pub(super) fn into_rollback_failed(self) -> Self {
        match self {
            Self::Refused { name, what, why } => Self::RollbackFailed { name, what, why },
            error => error,
        }
    }
}
