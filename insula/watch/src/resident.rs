//! Memory of a process that watches the base.

#![allow(unsafe_code, reason = "the allocator is set up by C calls only")]

use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};
use std::io;

/// Has this process keep the memory that it has, and have all of it present: so it needs nothing of the
/// base any more that could hang with it. What it allocates later on a node is the node's.
///
/// # Errors
/// When its memory cannot be locked.
pub fn keep_resident() -> io::Result<()> {
    /// No limit: freed memory is not given back.
    const NEVER: libc::c_int = -1;
    // SAFETY: only sets parameters of the allocator, under its own lock. If one is not known, the
    // allocator works as before.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
        libc::mallopt(libc::M_MMAP_MAX, 0);
    }
    Ok(mlockall(MlockAllFlags::MCL_CURRENT)?)
}
