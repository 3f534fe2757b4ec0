//! Physical memory, and the direct map through which the kernel accesses it.

use core::fmt;
use core::ptr;
use core::sync::atomic::AtomicU64;

/// Size of the smallest page, in bytes.
pub const FRAME_SIZE: u64 = 4096;
/// Size of a large page, in bytes.
pub const LARGE_SIZE: u64 = 2 << 20;
/// Size of a huge page, in bytes.
pub const HUGE_SIZE: u64 = 1 << 30;

/// Start of the direct map: a physical address is mapped at this plus itself. `boot.S` has the same
/// number as an index into the root table.
pub const DIRECT_MAP: u64 = 0xffff_8000_0000_0000;
/// Size of the direct map, in bytes.
pub const DIRECT_MAP_SIZE: u64 = 1 << 46;

/// A physical address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PhysAddr(pub u64);

impl PhysAddr {
    /// Returns its address in the direct map.
    #[must_use]
    pub fn in_direct_map(self) -> *mut u8 {
        debug_assert!(
            self.0 < DIRECT_MAP_SIZE,
            "{self:?} is outside the direct map"
        );
        ptr::with_exposed_provenance_mut((DIRECT_MAP + self.0) as usize)
    }

    /// Converts an address in the direct map.
    #[must_use]
    pub fn of_direct_map(address: u64) -> Self {
        Self(address.wrapping_sub(DIRECT_MAP))
    }

    /// Rounds down to the start of its frame.
    #[must_use]
    pub fn frame(self) -> Self {
        Self(self.0 & !(FRAME_SIZE - 1))
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}p", self.0)
    }
}

/// Copies bytes out of physical memory. The copy may be torn if another core or kernel writes them.
///
/// # Safety
/// The range is memory of this kernel.
pub unsafe fn read(from: PhysAddr, to: &mut [u8]) {
    // SAFETY: 1. by the caller, the range is mapped in the direct map. 2. `to` is borrowed
    // exclusively, so they overlap only if the caller broke that.
    unsafe { ptr::copy(from.in_direct_map(), to.as_mut_ptr(), to.len()) }
}

/// Copies bytes into physical memory.
///
/// # Safety
/// The range is memory of this kernel, and holds no Rust object.
pub unsafe fn write(to: PhysAddr, from: &[u8]) {
    // SAFETY: as promised by the caller.
    unsafe { ptr::copy(from.as_ptr(), to.in_direct_map(), from.len()) }
}

/// Copies physical memory.
///
/// # Safety
/// Both ranges are memory of this kernel, and the second holds no Rust object.
pub unsafe fn copy(from: PhysAddr, to: PhysAddr, size: u64) {
    // SAFETY: as promised by the caller.
    unsafe { ptr::copy(from.in_direct_map(), to.in_direct_map(), size as usize) }
}

/// Zeroes physical memory.
///
/// # Safety
/// As of [`write()`].
pub unsafe fn clear(at: PhysAddr, size: u64) {
    // SAFETY: as promised by the caller.
    unsafe { ptr::write_bytes(at.in_direct_map(), 0, size as usize) }
}

/// Allocates frames for page tables.
pub trait FrameAllocator {
    /// Allocates a zeroed frame.
    fn alloc(&mut self) -> Option<PhysAddr>;
    /// Frees a frame.
    fn free(&mut self, frame: PhysAddr);
}

/// Returns a word of memory that another kernel or core may read and write at any time.
///
/// # Safety
/// The word stays mapped in the direct map, and is accessed through atomics only.
#[must_use]
pub unsafe fn word(at: PhysAddr) -> &'static AtomicU64 {
    assert!(at.0.is_multiple_of(8), "{at:?} is not aligned to a word");
    // SAFETY: 1. mapped and only accessed so, by the caller. 2. Aligned, as was checked.
    unsafe { &*at.in_direct_map().cast::<AtomicU64>() }
}
