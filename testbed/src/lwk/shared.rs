//! Words that a process shares with its children.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicU64;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use super::{Named, ProbeError};

/// Shared words, zero at first, never unmapped.
pub(super) fn words(count: usize) -> Result<&'static [AtomicU64], ProbeError> {
    let size = NonZeroUsize::new(count * size_of::<AtomicU64>()).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_SHARED) };
    let start = start.named("shared memory")?.cast::<AtomicU64>();
    // SAFETY: it is that large, aligned to pages, never unmapped, and reached as atomics only.
    Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), count) })
}
