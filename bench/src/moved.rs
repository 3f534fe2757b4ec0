//! Pages that are moved from one place to another: what it costs at least to hand data over by giving their pages away.

#![allow(unsafe_code, reason = "pages are mapped and moved by address")]

use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use insula_driver::tsc;
use nix::sys::mman::{MRemapFlags, MapFlags, ProtFlags, mmap_anonymous, mremap};

use crate::blocks::COUNT;
use crate::probe::Ticks;

const PAGE: usize = 4096;

/// Maps zeroed memory, at an address if one is given.
fn map(at: Option<NonNull<c_void>>, bytes: NonZeroUsize) -> io::Result<NonNull<c_void>> {
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let (at, fixed) = match at {
        Some(at) => (NonZeroUsize::new(at.as_ptr().addr()), MapFlags::MAP_FIXED),
        None => (None, MapFlags::empty()),
    };
    let flags = MapFlags::MAP_PRIVATE | fixed;
    // SAFETY: new memory, or in place of what was moved away and nobody uses.
    Ok(unsafe { mmap_anonymous(at, bytes, access, flags) }?)
}

/// Writes to each page.
fn fill(start: NonNull<c_void>, bytes: NonZeroUsize) {
    for offset in (0..bytes.get()).step_by(PAGE) {
        // SAFETY: within what is mapped.
        unsafe { start.cast::<u8>().add(offset).write_volatile(1) };
    }
}

/// Moves so many bytes of pages, and puts new ones in their place, as who gives pages away has to: median and 99th percentile
/// of the durations.
///
/// # Errors
/// Those of mmap(2) and mremap(2).
pub fn each(bytes: NonZeroUsize) -> io::Result<Ticks> {
    let (from, to) = (map(None, bytes)?, map(None, bytes)?);
    fill(from, bytes);
    fill(to, bytes);
    let mut all = Vec::with_capacity(COUNT);
    for _ in 0..COUNT {
        let began = tsc();
        let flags = MRemapFlags::MREMAP_MAYMOVE | MRemapFlags::MREMAP_FIXED;
        // SAFETY: both ranges are this function's own.
        unsafe { mremap(from, bytes.get(), bytes.get(), flags, Some(to)) }?;
        map(Some(from), bytes)?;
        fill(from, bytes);
        all.push(tsc() - began);
    }
    Ok(Ticks::of(all))
}
