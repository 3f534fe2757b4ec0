//! What fails on the way, and what a process cannot be moved for.

use std::io;

use nix::errno::Errno;

/// An operation that failed, and why.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub(crate) struct Failure {
    what: String,
    source: io::Error,
}

impl Failure {
    /// Makes it from the error of an operation.
    pub(crate) fn of<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self {
            what: what.into(),
            source: source.into(),
        }
    }

    /// An operation that failed with an error of the kernel.
    pub(crate) fn new(what: impl Into<String>, errno: Errno) -> Self {
        Self::of(what)(errno)
    }

    /// Something that is not as it has to be.
    pub(crate) fn invalid(what: impl Into<String>, why: &'static str) -> Self {
        Self::of(what)(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

/// Why a process cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It filters its system calls: the proxy's own would be filtered, too.
    #[error("it filters its system calls (seccomp)")]
    Seccomp,
    /// Somebody traces it.
    #[error("process {0} traces it")]
    Traced(u32),
    /// It is stopped.
    #[error("it is stopped")]
    Stopped,
    /// It has ended, or its first thread has.
    #[error("its first thread has ended")]
    Ended,
    /// It has no memory of its own.
    #[error("it is a thread of the kernel")]
    OfKernel,
    /// It is a proxy.
    #[error("it runs on a node already")]
    OnNode,
    /// It is a 32-bit program.
    #[error("it is a 32-bit program")]
    NotLong,
    /// A thread uses AMX, which needs a permission of its own.
    #[error("it uses AMX")]
    Amx,
    /// It has a shadow stack.
    #[error("it has a shadow stack")]
    ShadowStack,
    /// Its memory is locked, also what it will map.
    #[error("it has locked memory")]
    Locked,
    /// RLIMIT_AS: the proxy's addresses would count.
    #[error("its address space is limited (RLIMIT_AS)")]
    AddressLimit,
    /// It has no vDSO, in which a system call instruction could be found.
    #[error("it has no vDSO")]
    NoVdso,
    /// Its addresses have no hole that is large enough.
    #[error("its addresses have no room for the proxy")]
    NoRoom,
    /// It has too many mappings.
    #[error("it has {0} mappings")]
    Mappings(usize),
    /// It does not run on a node.
    #[error("it does not run on a node")]
    NotOnNode,
    /// It was started on the node, or has executed a program or forked there.
    #[error("it was started on the node, or shares memory")]
    StartedOnNode,
    /// It is the process that moves others.
    #[error("it is the process that was to move it")]
    Itself,
}
