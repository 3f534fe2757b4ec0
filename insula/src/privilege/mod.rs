//! Least privilege: what a supervisor and the programs that it starts may still do.
//!
//! A supervisor reads what its node has written: rings, messages, the kernel's log. So do the
//! programs that serve the node's devices. A node that finds a fault in one of them has that
//! process. Therefore each process gives up, before it reads the first such byte, what this node
//! does not need of it:
//!
//! | what | supervisor | `virtiofsd` | `qemu-storage-daemon` |
//! |---|---|---|---|
//! | capabilities | those of the node's devices ([`Needs`]) | those of a file server | to open its disk |
//! | new privileges by exec | none | none | none |
//! | calls refused (seccomp) | [`calls::REFUSED`] | the same, and its own | the same, sockets, mounts |
//! | files | all | its folder (its own mount namespace) | its disk, libraries (Landlock) |
//! | descriptors | the node, `/dev/insula` | its connection | its connection |
//!
//! A process can only give up: children begin with what their parent has kept. So a supervisor keeps
//! what a file server needs as long as its node has a folder as its root.
//!
//! What is left to a hostile node is told in the book, under *Threat model*.
//!
//! Sources: `capabilities(7)`, `seccomp(2)`, `landlock(7)`, and
//! `Documentation/userspace-api/no_new_privs.rst` of the kernel.

mod calls;
mod capabilities;
mod files;
mod sandbox;

use std::io;

use rustix::thread::set_no_new_privs;

pub use capabilities::Needs;
pub(crate) use sandbox::{Sandbox, detach};

/// Why a process could not give up what it does not need. It has done nothing else.
#[derive(Debug, thiserror::Error)]
pub enum RestrictError {
    /// The kernel refused.
    #[error("giving up {what}: {source}")]
    Kernel {
        /// What was to be given up.
        what: &'static str,
        /// Why it was not.
        source: io::Error,
    },
    /// The list of refused calls cannot be made a filter.
    #[error("making a filter of system calls: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// The filter was not accepted.
    #[error("giving up system calls: {0}")]
    Calls(#[from] seccompiler::Error),
    /// The rules of files were not accepted.
    #[error("giving up files: {0}")]
    Files(#[from] landlock::RulesetError),
}

/// Gives up all that a supervisor of a node with these needs can do without. Of this thread and of
/// those that it will start: to be called before there are others.
///
/// # Errors
/// [`RestrictError`].
pub fn restrict_supervisor(needs: Needs) -> Result<(), RestrictError> {
    let filter = calls::filter(calls::REFUSED)?;
    capabilities::limit_bounding_set(needs.supervisor())?;
    give_up(needs.supervisor(), &filter)
}

/// Gives up capabilities, new privileges and calls. Allocates nothing unless it fails.
fn give_up(
    kept: rustix::thread::CapabilitySet,
    filter: &seccompiler::BpfProgram,
) -> Result<(), RestrictError> {
    capabilities::keep(kept)?;
    set_no_new_privs(true).map_err(kernel("new privileges"))?;
    Ok(seccompiler::apply_filter(filter)?)
}

/// Names what was to be given up.
fn kernel(what: &'static str) -> impl Fn(rustix::io::Errno) -> RestrictError {
    move |source| RestrictError::Kernel {
        what,
        source: source.into(),
    }
}
