//! Least privilege: what a supervisor and the device servers that it starts may still do.
//!
//! A supervisor reads what its node has written: rings, messages, the kernel's log. So do the
//! device servers. A node that exploits a bug in one of them controls that process. Therefore each
//! process drops, before it reads the first such byte, the privileges that this node does not need:
//!
//! | what | supervisor | `virtiofsd` | `qemu-storage-daemon` |
//! |---|---|---|---|
//! | capabilities | those of the node's devices ([`DeviceNeeds`]) | those of a file server | to open its disk |
//! | new privileges by exec | none | none | none |
//! | calls refused (seccomp) | [`calls::REFUSED`] | the same, and its own | the same, sockets, mounts |
//! | files | all | its folder (its own mount namespace) | its disk, libraries (Landlock) |
//! | descriptors | the node, `/dev/insula` | its connection | its connection |
//!
//! Privileges can only be dropped: children inherit what their parent has kept. So a supervisor
//! keeps what a file server needs as long as its node has a folder as its root.
//!
//! The book describes what is left to a hostile node, under *Threat model*.
//!
//! Sources: `capabilities(7)`, `seccomp(2)`, `landlock(7)`, and
//! `Documentation/userspace-api/no_new_privs.rst` of the kernel.

mod calls;
mod capabilities;
mod files;
mod sandbox;

use std::io;

use rustix::thread::set_no_new_privs;

pub use capabilities::DeviceNeeds;
pub use sandbox::{Sandbox, detach};

/// Why a process could not drop privileges. It has done nothing else.
#[derive(Debug, thiserror::Error)]
pub enum RestrictError {
    /// The kernel refused.
    #[error("giving up {what}: {source}")]
    Kernel {
        /// The privilege to be dropped.
        what: &'static str,
        /// The error.
        source: io::Error,
    },
    /// The seccomp filter could not be built.
    #[error("making a filter of system calls: {0}")]
    Filter(#[from] seccompiler::BackendError),
    /// The seccomp filter was not installed.
    #[error("giving up system calls: {0}")]
    Calls(#[from] seccompiler::Error),
    /// The Landlock rules were not installed.
    #[error("giving up files: {0}")]
    Files(#[from] landlock::RulesetError),
}

/// Drops everything that a supervisor of a node with these devices does not need, for this thread
/// and its children: must be called before there are other threads.
///
/// # Errors
/// [`RestrictError`].
pub fn restrict_supervisor(needs: DeviceNeeds) -> Result<(), RestrictError> {
    let filter = calls::filter(calls::REFUSED)?;
    capabilities::limit_bounding_set(needs.supervisor())?;
    drop_privileges(needs.supervisor(), &filter)
}

/// Drops capabilities, new privileges and calls. Allocates nothing unless it fails.
fn drop_privileges(
    kept: rustix::thread::CapabilitySet,
    filter: &seccompiler::BpfProgram,
) -> Result<(), RestrictError> {
    capabilities::retain(kept)?;
    set_no_new_privs(true).map_err(kernel("new privileges"))?;
    Ok(seccompiler::apply_filter(filter)?)
}

/// Converts an error of the kernel, with the privilege that was to be dropped.
fn kernel(what: &'static str) -> impl Fn(rustix::io::Errno) -> RestrictError {
    move |source| RestrictError::Kernel {
        what,
        source: source.into(),
    }
}
