//! A kernel's memory, read from outside.

use std::ops::Range;
use thiserror::Error;

/// Memory of a kernel, by physical address.
///
/// The kernel may be running: bytes may change from one call to the next, and are whatever the
/// kernel wrote.
pub trait PhysicalMemory {
    /// The ranges of physical addresses that are the kernel's memory.
    fn ranges(&self) -> Vec<Range<u64>>;

    /// Copies bytes from physical address `address` into `into`.
    ///
    /// They must be loaded during the call, after those of any earlier call (like volatile loads);
    /// an aligned 64-bit word must not be torn.
    ///
    /// # Errors
    /// [`ReadError`] when not all of them are the kernel's memory; `into` is then unspecified.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError>;
}

/// An access outside of a kernel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the kernel has no memory at physical address {address:#x}, {size} bytes; nothing was changed"
)]
pub struct ReadError {
    /// First physical address of the access.
    pub address: u64,
    /// Size of the access in bytes.
    pub size: usize,
}

impl<M: PhysicalMemory + ?Sized> PhysicalMemory for &M {
    fn ranges(&self) -> Vec<Range<u64>> {
        (**self).ranges()
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        (**self).read(address, into)
    }
}
