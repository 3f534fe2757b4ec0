//! Unchecked access to the module's device: calls and mappings that no library would make.

#![allow(
    unsafe_code,
    reason = "the module must withstand arguments that a safe interface cannot make"
)]

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use insula_abi::ioctl;
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

const PAGE_SIZE: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// Memory that the module may read and write freely: any content is valid, and nothing else is in
/// it.
#[derive(Debug)]
pub(crate) struct Arena(Box<[AtomicU64]>);

impl Arena {
    /// An arena of that many words of 8 bytes.
    pub(crate) fn new(words: usize) -> Self {
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    /// Value of a word.
    pub(crate) fn word(&self, index: usize) -> u64 {
        let word = self.0.get(index);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Writes bytes at that word and those after it, as far as they fit.
    pub(crate) fn put(&self, index: usize, bytes: &[u8]) {
        for (word, piece) in self.0.iter().skip(index).zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..piece.len()].copy_from_slice(piece);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
    }
}

/// Argument of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument<'a> {
    /// The structure at the start of an arena.
    Arena(&'a Arena),
    /// One of [`NOWHERE`], by its index.
    Nowhere(usize),
}

/// Addresses that no process has mapped: the first page is never mapped (vm.mmap_min_addr), and
/// user space ends below 2^56 even with five levels of page tables.
pub(crate) const NOWHERE: [u64; 4] = [0, 8, 1 << 62, u64::MAX - 7];

/// Result of a call.
#[derive(Debug)]
pub(crate) enum Answer {
    /// A number.
    Number(i32),
    /// A new descriptor.
    Descriptor(OwnedFd),
}

/// Calls the descriptor with any request number. Addresses of user space in the structure must lie
/// in the same arena, with room for all that the module may store there, or be of [`NOWHERE`].
///
/// # Errors
/// The system's error.
pub(crate) fn call(fd: RawFd, request: u32, argument: Argument<'_>) -> Result<Answer, Errno> {
    let address = match argument {
        Argument::Arena(arena) => arena.address(),
        Argument::Nowhere(index) => NOWHERE[index % NOWHERE.len()],
    };
    // SAFETY: 1. `fd` is, or was, one of the module's. If it was closed meanwhile the call fails,
    // or reaches another of the module's, or an eventfd, which stores nothing: no other descriptors
    // are opened while some are closed at random. 2. The module stores only into an arena, at
    // `address` or where the structure directs it; the arena consists of atomics and lives for the
    // length of the call. Other addresses are unmapped.
    let answer = unsafe { libc::ioctl(fd, libc::Ioctl::from(request), address) };
    let answer = Errno::result(answer)?;
    if !makes_descriptor(request) {
        return Ok(Answer::Number(answer));
    }
    // SAFETY: the module's answer to these requests is a descriptor made for this caller alone.
    Ok(Answer::Descriptor(unsafe { OwnedFd::from_raw_fd(answer) }))
}

fn makes_descriptor(request: u32) -> bool {
    matches!(
        request,
        ioctl::MEMORY_CREATE
            | ioctl::MEMORY_SHOW
            | ioctl::BASE_MEMORY
            | ioctl::IMAGE_OPEN
            | ioctl::NODE_CREATE
            | ioctl::NODE_OPEN
            | ioctl::NODE_MEMORY
            | ioctl::NODE_SHARED
            | ioctl::CHANNEL_OPEN
            | ioctl::NODE_GRANT_TABLE
            | ioctl::MIRROR_CREATE
            | ioctl::NODE_MONITOR
    )
}

/// Maps the first pages of a memory object or of a channel's rings, reads each as far as it exists
/// (another thread may remove memory from a node), and unmaps them.
///
/// # Errors
/// The system's error.
pub(crate) fn read_mapped(memory: BorrowedFd<'_>, pages: NonZeroUsize) -> Result<(), Errno> {
    let length = PAGE_SIZE.saturating_mul(pages);
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, memory, 0) }?;
    let own = File::open("/proc/self/mem").map_err(|_| Errno::EIO)?;
    for page in 0..pages.get() {
        let address = start.as_ptr() as u64 + (page * PAGE_SIZE.get()) as u64;
        let _ = own.read_at(&mut [0], address);
    }
    // SAFETY: exactly what was mapped above; nothing refers to it.
    unsafe { munmap(start, length.get()) }
}
