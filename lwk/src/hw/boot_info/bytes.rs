//! Reads tables from physical memory.

use alloc::vec;
use alloc::vec::Vec;

/// A table points outside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAddress {
    /// The address.
    pub address: u64,
}

/// Copies bytes out of physical memory.
pub struct Reader<'a> {
    copy: &'a dyn Fn(u64, &mut [u8]) -> bool,
}

/// Limit on the size of a table.
const SIZE_MAX: usize = 1 << 20;

impl<'a> Reader<'a> {
    /// Uses `copy`, which copies from a physical address and returns whether there is memory.
    pub fn new(copy: &'a dyn Fn(u64, &mut [u8]) -> bool) -> Self {
        Self { copy }
    }

    /// Reads bytes at an address.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn bytes(&self, address: u64, size: usize) -> Result<Vec<u8>, BadAddress> {
        let mut bytes = vec![0; size.min(SIZE_MAX)];
        match size <= SIZE_MAX && (self.copy)(address, &mut bytes) {
            true => Ok(bytes),
            false => Err(BadAddress { address }),
        }
    }

    fn array<const N: usize>(&self, address: u64) -> Result<[u8; N], BadAddress> {
        let mut bytes = [0; N];
        match (self.copy)(address, &mut bytes) {
            true => Ok(bytes),
            false => Err(BadAddress { address }),
        }
    }

    /// Reads a byte.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn u8(&self, address: u64) -> Result<u8, BadAddress> {
        Ok(u8::from_le_bytes(self.array(address)?))
    }

    /// Reads a 32-bit word.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn u32(&self, address: u64) -> Result<u32, BadAddress> {
        Ok(u32::from_le_bytes(self.array(address)?))
    }

    /// Reads a 64-bit word.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn u64(&self, address: u64) -> Result<u64, BadAddress> {
        Ok(u64::from_le_bytes(self.array(address)?))
    }
}

/// Returns the 32-bit word at an offset; 0 if the bytes are too few.
pub(super) fn u32_in(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u32::from_le_bytes)
}

/// Returns the 64-bit word at an offset; 0 if the bytes are too few.
pub(super) fn u64_in(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u64::from_le_bytes)
}
