//! Reading tables that lie anywhere in physical memory.

use alloc::vec;
use alloc::vec::Vec;

/// An address that no table should lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfPlace {
    /// The address.
    pub address: u64,
}

/// Copies bytes out of physical memory.
pub struct Reader<'a> {
    copy: &'a dyn Fn(u64, &mut [u8]) -> bool,
}

/// Longer than any table that is read here.
const SIZE_MAX: usize = 1 << 20;

impl<'a> Reader<'a> {
    /// Of a function that copies from an address, and answers whether there is memory.
    pub fn new(copy: &'a dyn Fn(u64, &mut [u8]) -> bool) -> Self {
        Self { copy }
    }

    /// Bytes at an address.
    ///
    /// # Errors
    /// [`OutOfPlace`].
    pub fn bytes(&self, address: u64, size: usize) -> Result<Vec<u8>, OutOfPlace> {
        let mut bytes = vec![0; size.min(SIZE_MAX)];
        match size <= SIZE_MAX && (self.copy)(address, &mut bytes) {
            true => Ok(bytes),
            false => Err(OutOfPlace { address }),
        }
    }

    fn array<const N: usize>(&self, address: u64) -> Result<[u8; N], OutOfPlace> {
        let mut bytes = [0; N];
        match (self.copy)(address, &mut bytes) {
            true => Ok(bytes),
            false => Err(OutOfPlace { address }),
        }
    }

    /// A byte.
    ///
    /// # Errors
    /// [`OutOfPlace`].
    pub fn u8(&self, address: u64) -> Result<u8, OutOfPlace> {
        Ok(u8::from_le_bytes(self.array(address)?))
    }

    /// A word of 32 bits.
    ///
    /// # Errors
    /// [`OutOfPlace`].
    pub fn u32(&self, address: u64) -> Result<u32, OutOfPlace> {
        Ok(u32::from_le_bytes(self.array(address)?))
    }

    /// A word of 64 bits.
    ///
    /// # Errors
    /// [`OutOfPlace`].
    pub fn u64(&self, address: u64) -> Result<u64, OutOfPlace> {
        Ok(u64::from_le_bytes(self.array(address)?))
    }
}

/// A word of 32 bits in bytes that were read; 0 if they are too few.
pub(super) fn u32_in(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u32::from_le_bytes)
}

/// A word of 64 bits in bytes that were read; 0 if they are too few.
pub(super) fn u64_in(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk);
    word.copied().map_or(0, u64::from_le_bytes)
}
