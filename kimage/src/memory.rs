//! A kernel's memory, read from outside.

use std::ops::Range;
use thiserror::Error;

/// Memory that a kernel runs in, by physical address.
///
/// The kernel may be running: what is read may change from one call to the next, and what lies there is whatever
/// that kernel put there.
pub trait PhysicalMemory {
    /// The stretches of physical addresses that the kernel has as its memory.
    fn ranges(&self) -> Vec<Range<u64>>;

    /// Copies the bytes from physical address `address` on into `into`.
    ///
    /// They must be loaded during the call, after those of any earlier call (as volatile loads are); an aligned
    /// 64-bit word must not be torn.
    ///
    /// # Errors
    /// [`ReadError`] when not all of them are memory of the kernel; `into` may then hold anything.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), ReadError>;
}

/// Memory that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "there is no memory of the kernel at physical address {address:#x}, {size} bytes; nothing was changed"
)]
pub struct ReadError {
    /// First physical address that was to be read.
    pub address: u64,
    /// Bytes that were to be read.
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
