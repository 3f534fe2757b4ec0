//! Why a node was not updated, and what became of it.

use nix::errno::Errno;

use crate::channel::{AttachError, ChannelError};
use crate::driver::DriverError;
use crate::memory::MemoryError;
use crate::name::Name;
use crate::node::FindError;
use crate::units::Size;
use crate::virtio::ResizeError;

/// Why a node was not updated.
#[derive(Debug, thiserror::Error)]
pub enum UpdateError {
    /// It cannot be had.
    #[error(transparent)]
    Find(#[from] FindError),
    /// It does not run.
    #[error(
        "the node '{0}' does not run; nothing was kept\n\
         a node gets more, or less, while it runs; one that is stopped is removed and started anew"
    )]
    NotRunning(Name),
    /// What is kept beside the node is not ours.
    #[error(
        "the record of the node '{0}' cannot be understood; nothing was touched\n\
         it was started by another version of insula: use that one"
    )]
    NoRecord(Name),
    /// None would be left.
    #[error(
        "the node '{0}' keeps the core that it booted on; nothing was touched\n\
         end it with `insula stop {0}`"
    )]
    NoCore(Name),
    /// Its tables do not list so many.
    #[error(
        "the node '{name}' cannot have {wanted} cores: it was started with room for {most}; \
         nothing was touched\n\
         start it anew with room to grow: `insula run --max-cpus {wanted}`"
    )]
    NoRoom {
        /// The node.
        name: Name,
        /// Cores that it would have.
        wanted: u64,
        /// Most that it can have.
        most: u64,
    },
    /// Others have them.
    #[error(
        "cores asked for: {asked}; of those that the node '{name}' has room for, free: {free}; \
         nothing was kept\n\
         ask for fewer, or stop a node: `insula machine info` shows who has which"
    )]
    Taken {
        /// The node.
        name: Name,
        /// Asked for.
        asked: u32,
        /// Free.
        free: usize,
    },
    /// Others were always faster.
    #[error(
        "cores were taken by somebody else several times in a row; nothing was kept\n\
         try again when fewer nodes are being started"
    )]
    Contended,
    /// No whole blocks.
    #[error(
        "the kernel of the node '{name}' takes and gives memory in blocks of {block}: {asked} is \
         no multiple; nothing was touched\n\
         ask for a multiple"
    )]
    Block {
        /// The node.
        name: Name,
        /// Asked for.
        asked: Size,
        /// What it must be a multiple of.
        block: Size,
    },
    /// More than it was given.
    #[error(
        "the node '{name}' keeps the memory that it was started with, it can give back {added}; \
         nothing was touched\n\
         ask for no more than that, in the pieces in which it was added"
    )]
    StartedWith {
        /// The node.
        name: Name,
        /// What it has got since.
        added: Size,
    },
    /// The memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The base has none in one piece.
    #[error(
        "{asked} of memory could not be taken in whole blocks of {block}, as the node's kernel \
         wants it: the base has too much of it in use; nothing was kept\n\
         ask for less, or reserve it early after boot with `insula machine reserve --memory`"
    )]
    NoBlocks {
        /// How much.
        asked: Size,
        /// In what pieces.
        block: Size,
    },
    /// Nobody answers in the node.
    #[error(
        "in the node '{0}' nobody listens; nothing was touched\n\
         its kernel needs insula.ko: `modprobe insula` there, with the package insula-dkms, or \
         `insmod`"
    )]
    NoModule(Name),
    /// Somebody else is at it.
    #[error(
        "another update of the node '{0}' is under way; nothing was touched\n\
         try again when it is done"
    )]
    Busy(Name),
    /// What the node said cannot be.
    #[error(
        "the module in the node '{0}' cannot be understood; nothing was touched\n\
         use the same version of insula in both"
    )]
    Nonsense(Name),
    /// Who serves its devices cannot go along.
    #[error(
        "the devices of the node '{name}' cannot work with other memory: {source}; all is as it was\n\
         `insula inspect {name}` shows its devices"
    )]
    Devices {
        /// The node.
        name: Name,
        /// Why not.
        source: ResizeError,
    },
    /// The node's kernel will not.
    #[error(
        "the kernel of the node '{name}' refused to {what}: {}; all is as it was\n\
         `insula logs --tail 20 {name}` may tell more", .why.desc()
    )]
    Refused {
        /// The node.
        name: Name,
        /// What it was to do, as words that follow "to".
        what: String,
        /// Why not.
        why: Errno,
    },
    /// The node's kernel will not, and not go back either.
    #[error(
        "the kernel of the node '{name}' refused to {what}: {}; what was given to it so far stays \
         its own and goes when it goes\n\
         update it again, or restart it", .why.desc()
    )]
    NotUndone {
        /// The node.
        name: Name,
        /// What it was to do, as words that follow "to".
        what: String,
        /// Why not.
        why: Errno,
    },
    /// It is at it for too long.
    #[error(
        "the node '{name}' takes too long to {what}, and may still do it; what it was given stays \
         its own and goes when it goes\n\
         update it again: what is done already is not done twice"
    )]
    Silent {
        /// The node.
        name: Name,
        /// What it was to do, as words that follow "to".
        what: String,
    },
    /// It has ended, or the module in it has gone.
    #[error(
        "the node '{0}' has ended, or its kernel has let go of insula.ko; what it was given stays \
         its own and goes when it goes\n\
         `insula ps -a` shows its state"
    )]
    HungUp(Name),
    /// Its channel cannot be used.
    #[error(
        "the channel for orders of the node '{name}' failed: {source}; what it was given stays its own"
    )]
    Channel {
        /// The node.
        name: Name,
        /// Why.
        source: ChannelError,
    },
    /// Its channel cannot be used.
    #[error("the node's channel for orders cannot be used: {0}; nothing was touched")]
    Attach(#[from] AttachError),
    /// The module failed.
    #[error("the module failed: {0}\n`insula inspect` shows what the node has")]
    Driver(#[from] DriverError),
}

impl UpdateError {
    /// Whether the node's kernel uses what it used before.
    pub(super) fn is_undone(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Devices { .. })
    }

    /// The failure of an attempt to go back.
    pub(super) fn not_undone(self) -> Self {
        match self {
            Self::Refused { name, what, why } => Self::NotUndone { name, what, why },
            error => error,
        }
    }
}
