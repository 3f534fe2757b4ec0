//! Least privilege: what a supervisor and the device servers that it starts may still do.
//!
//! A supervisor reads what its node has written: rings, messages, the kernel's log. So do the
//! device servers. A node that exploits a bug in one of them controls that process. Therefore each
//! process drops, before it reads the first such byte, the privileges that this node does not need:
//!
//! | what | supervisor | `virtiofsd` | `qemu-storage-daemon` | watcher |
//! |---|---|---|---|---|
//! | capabilities | those of the node's devices ([`DeviceNeeds`]) | those of a file server | to open its disk | to read files |
//! | new privileges by exec | none | none | none | none |
//! | calls refused (seccomp) | `calls::REFUSED` | the same, and its own | the same, sockets, mounts | the same |
//! | files | all | its folder (its own mount namespace), or only to read it | its disk's files, libraries (Landlock) | all, to read |
//! | descriptors | the node, `/dev/insula` | its connection | its connection | the node |
//!
//! Privileges can only be dropped: children inherit what their parent has kept. So a supervisor
//! keeps what a file server needs as long as its node has a folder of the base.
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

use insula_base::error::{Error, Source};
use rustix::thread::set_no_new_privs;

pub use capabilities::DeviceNeeds;
pub use files::DiskAccess;
pub use sandbox::{Sandbox, detach, die_with_parent};

/// Drops everything that a supervisor of a node with these devices does not need, for this thread
/// and its children: must be called before there are other threads.
///
/// # Errors
/// When the kernel refuses; some privileges may have been dropped.
pub fn restrict_supervisor(needs: DeviceNeeds) -> Result<(), Error> {
    let filter = calls::filter(calls::REFUSED)?;
    capabilities::limit_bounding_set(needs.supervisor())?;
    drop_privileges(needs.supervisor(), &filter)
}

/// Drops capabilities, new privileges and calls. Allocates nothing unless it fails.
fn drop_privileges(
    kept: rustix::thread::CapabilitySet,
    filter: &seccompiler::BpfProgram,
) -> Result<(), Error> {
    capabilities::retain(kept)?;
    set_no_new_privs(true).map_err(kernel("giving up new privileges"))?;
    seccompiler::apply_filter(filter).map_err(failed("giving up system calls"))
}

/// Converts the kernel's refusal, with what was to be done.
fn kernel(doing: &'static str) -> impl Fn(rustix::io::Errno) -> Error {
    move |errno| failed(doing)(io::Error::from(errno))
}

/// Converts the cause of a failure, with what was to be done.
fn failed<E: Into<Source>>(doing: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::new(doing).because(source)
}
