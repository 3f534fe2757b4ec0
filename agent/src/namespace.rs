//! Namespaces of the calling thread.

use std::io;

use rustix::thread::UnshareFlags;

/// Gives the calling thread namespaces of its own.
#[allow(unsafe_code, reason = "other flags than these would need care")]
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: none of the flags is FILES, which alone has requirements.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}
