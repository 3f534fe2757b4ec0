//! The system calls for PCI functions, and access to what they map.

#![allow(
    unsafe_code,
    reason = "system calls are made by number; registers and a device's memory are accessed by address"
)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use insula_abi::pci::{
    PciFunction, PciMemory, SYS_PCI_ALLOCATE, SYS_PCI_CLAIM, SYS_PCI_ENABLE, SYS_PCI_INTERRUPT,
    SYS_PCI_LIST, SYS_PCI_MAP, SYS_PCI_READ, SYS_PCI_RELEASE,
};
use nix::errno::Errno;
use nix::libc;

use super::DeviceMemory;

/// # Safety
/// What the call does with this process's memory must be allowed.
unsafe fn call(number: u64, [a, b, c, d]: [u64; 4]) -> Result<u64, Errno> {
    // SAFETY: by the caller.
    let result = unsafe { libc::syscall(number.cast_signed(), a, b, c, d) };
    Errno::result(result).map(i64::cast_unsigned)
}

/// Lists the first functions. Returns how many there are.
pub(super) fn list(to: &mut [PciFunction]) -> Result<usize, Errno> {
    let arguments = [to.as_mut_ptr() as u64, to.len() as u64, 0, 0];
    // SAFETY: it writes at most as many entries, of which any content is valid.
    unsafe { call(SYS_PCI_LIST, arguments) }.map(|all| all as usize)
}

pub(super) fn claim(address: u32) -> Result<(), Errno> {
    // SAFETY: it touches no memory.
    unsafe { call(SYS_PCI_CLAIM, [address.into(), 0, 0, 0]) }.map(drop)
}

pub(super) fn release(address: u32) {
    // It fails only if it is not claimed.
    // SAFETY: it touches no memory.
    let _ = unsafe { call(SYS_PCI_RELEASE, [address.into(), 0, 0, 0]) };
}

pub(super) fn enable(address: u32, flags: u64) -> Result<(), Errno> {
    // SAFETY: a device that was told addresses by a driver got those of memory that is kept for it.
    unsafe { call(SYS_PCI_ENABLE, [address.into(), flags, 0, 0]) }.map(drop)
}

/// Reads a word of configuration space.
pub(super) fn read_config(address: u32, offset: u64) -> Result<u32, Errno> {
    // SAFETY: it touches no memory.
    let read = unsafe { call(SYS_PCI_READ, [address.into(), offset, 4, 0]) };
    read.map(|word| word as u32)
}

/// Has a message arrive at an endpoint of this process.
pub(super) fn interrupt(address: u32, message: u64, endpoint: u64) -> Result<(), Errno> {
    // SAFETY: it touches no memory.
    unsafe { call(SYS_PCI_INTERRUPT, [address.into(), message, endpoint, 0]) }.map(drop)
}

fn unmap(start: NonNull<u8>, size: usize) {
    // SAFETY: it was mapped by the kernel, and only its owner, who is dropped, has its address.
    unsafe { libc::munmap(start.as_ptr().cast(), size) };
}

/// What a register contains: an unsigned number.
pub(super) trait Register: Copy {}

impl Register for u8 {}
impl Register for u16 {}
impl Register for u32 {}

/// A BAR, mapped.
#[derive(Debug)]
pub(super) struct Registers {
    start: NonNull<u8>,
    size: usize,
}

impl Registers {
    /// Maps the first bytes of a BAR, whole pages.
    pub(super) fn map(address: u32, bar: u64, size: usize) -> Result<Self, Errno> {
        let arguments = [address.into(), bar, 0, size as u64];
        // SAFETY: it maps at a free address.
        let start = unsafe { call(SYS_PCI_MAP, arguments) }?;
        let start = ptr::with_exposed_provenance_mut(start as usize);
        let start = NonNull::new(start).ok_or(Errno::EFAULT)?;
        Ok(Self { start, size })
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the address of a register; its type has as many bytes as it.
    fn at<T: Register>(&self, offset: usize) -> *mut T {
        assert!(offset.is_multiple_of(size_of::<T>()) && offset < self.size);
        // SAFETY: it is within the mapping.
        unsafe { self.start.as_ptr().add(offset) }.cast()
    }

    pub(super) fn read<T: Register>(&self, offset: usize) -> T {
        // SAFETY: 1. an aligned register within the mapping, which lasts as long as this. 2. Any bits are
        // valid.
        let value = unsafe { self.at::<T>(offset).read_volatile() };
        fence(Ordering::Acquire);
        value
    }

    pub(super) fn write<T: Register>(&mut self, offset: usize, value: T) {
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { self.at::<T>(offset).write_volatile(value) };
    }
}

// SAFETY: the mapping is the process's, and may be used by any of its threads; it has one owner.
unsafe impl Send for Registers {}

impl Drop for Registers {
    fn drop(&mut self) {
        unmap(self.start, self.size);
    }
}

/// Memory that a device reaches. It stays the device's until the function is released.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    size: usize,
    device_address: u64,
}

impl Memory {
    pub(super) fn allocate(address: u32, bytes: usize) -> Result<Self, Errno> {
        let mut memory = PciMemory {
            size: bytes as u64,
            ..PciMemory::default()
        };
        let arguments = [address.into(), &raw mut memory as u64, 0, 0];
        // SAFETY: it maps at a free address, and writes to `memory`.
        unsafe { call(SYS_PCI_ALLOCATE, arguments) }?;
        let start = ptr::with_exposed_provenance_mut(memory.start as usize);
        Ok(Self {
            start: NonNull::new(start).ok_or(Errno::EFAULT)?,
            size: memory.size as usize,
            device_address: memory.device_address,
        })
    }

    fn at(&self, at: usize, length: usize) -> *mut u8 {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.size));
        // SAFETY: it is within the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }
}

// SAFETY: as of registers.
unsafe impl Send for Memory {}

impl DeviceMemory for Memory {
    fn device_address(&self) -> u64 {
        self.device_address
    }

    fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.at(at, to.len());
        // SAFETY: 1. both are of that length, and apart: nobody else has addresses of the mapping. 2. What
        // the device writes meanwhile is torn, not wrong for Rust: any bytes are valid.
        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        let to = self.at(at, from.len());
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    fn word(&self, at: usize) -> u32 {
        assert!(at.is_multiple_of(4));
        // SAFETY: aligned, as the mapping is, and within it.
        let word = unsafe { self.at(at, 4).cast::<u32>().read_volatile() };
        fence(Ordering::Acquire);
        word
    }

    fn set_word(&mut self, at: usize, value: u32) {
        assert!(at.is_multiple_of(4));
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe { self.at(at, 4).cast::<u32>().write_volatile(value) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unmap(self.start, self.size);
    }
}
