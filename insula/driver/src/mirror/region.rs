//! The part of a process's address space that is its proxy's: the blob and its data, the syscall
//! slots, the stacks.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

use insula_abi::lwk::{MIRROR_SLOTS_SIZE, PAGE_SIZE, PAGES_MAX, SLOTS_PER_PAGE, SyscallSlot};
use insula_base::error::Error;
use insula_proxy::{BLOB_SIZE, STACK_SIZE};
use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::data::data_size;
use super::{MEMORY, failed};

/// Start of the program's part of the address space: no process has anything below
/// (`vm.mmap_min_addr`).
pub(super) const ADDRESS_MIN: u64 = 0x1_0000;
/// End of a process's address space (`TASK_SIZE` with four levels of page tables).
pub(super) const ADDRESS_END: u64 = 0x7fff_ffff_f000;
/// Size of the mapping of all slots that an area can have, and behind them once more as exiting
/// threads find them.
pub(super) const SLOTS_SIZE: u64 = 2 * MIRROR_SLOTS_SIZE;
const STACKS_SIZE: u64 = PAGES_MAX as u64 * SLOTS_PER_PAGE as u64 * STACK_SIZE as u64;

/// Slots fill the pages of their mapping.
const _: () = assert!(size_of::<SyscallSlot>() as u64 * SLOTS_PER_PAGE as u64 == PAGE_SIZE);

/// Where the parts of a proxy are in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLayout {
    address: u64,
    data_size: usize,
}

impl RegionLayout {
    /// Lays out a proxy at an address, with that many bytes of arguments.
    #[must_use]
    pub fn new(address: u64, arguments_size: usize) -> Self {
        let data_size = data_size(arguments_size);
        Self { address, data_size }
    }

    /// Its first address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        (BLOB_SIZE + self.data_size) as u64 + SLOTS_SIZE + STACKS_SIZE
    }

    /// The address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address + self.size()
    }

    pub(super) fn data(&self) -> u64 {
        self.address + BLOB_SIZE as u64
    }

    /// Bytes of the data, in whole pages.
    pub(super) fn data_size(&self) -> usize {
        self.data_size
    }

    pub(super) fn slots(&self) -> u64 {
        self.data() + self.data_size as u64
    }

    pub(super) fn stacks(&self) -> u64 {
        self.slots() + SLOTS_SIZE
    }

    /// Lowest address of the stack for a slot.
    pub(super) fn stack(&self, slot: u32) -> u64 {
        self.stacks() + u64::from(slot) * STACK_SIZE as u64
    }
}

/// The part of this process's address space reserved for a proxy.
#[derive(Debug)]
pub struct ProxyRegion {
    start: NonNull<u8>,
    size: NonZeroUsize,
    layout: RegionLayout,
}

impl Deref for ProxyRegion {
    type Target = RegionLayout;

    fn deref(&self) -> &RegionLayout {
        &self.layout
    }
}

impl ProxyRegion {
    /// Reserves it for a proxy with that many bytes of arguments.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn reserve(arguments_size: usize) -> Result<Self, Error> {
        let size = RegionLayout::new(0, arguments_size).size();
        let size = usize::try_from(size).ok().and_then(NonZeroUsize::new);
        let size = size.ok_or_else(|| failed(MEMORY)(Errno::ENOMEM))?;
        // Inaccessible, or the base might have to reserve memory for all stacks.
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { mmap_anonymous(None, size, ProtFlags::PROT_NONE, flags) };
        let start: NonNull<u8> = start.map_err(failed(MEMORY))?.cast();
        Ok(Self {
            start,
            size,
            layout: RegionLayout::new(start.as_ptr() as u64, arguments_size),
        })
    }

    pub(super) fn start(&self) -> NonNull<c_void> {
        self.start.cast()
    }

    /// The range that is left for the program.
    #[must_use]
    pub fn program(&self) -> Range<u64> {
        ADDRESS_MIN..self.address()
    }
}

impl Drop for ProxyRegion {
    fn drop(&mut self) {
        // SAFETY: the region is this value's, and no reference into it is kept.
        let _ = unsafe { munmap(self.start.cast(), self.size.get()) };
    }
}
