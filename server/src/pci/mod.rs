//! PCI functions that the node was given: claiming one, its registers, memory that it reaches.
//!
//! A driver is written against [`Device`], and so tested on any computer with a device that is played.
//! The protocol is in `abi/include/insula_pci.h`.

mod address;
mod function;
mod sys;

pub use address::{AddressError, PciAddress};
pub use function::{ClaimedFunction, Error, FunctionState, Memory, functions, interrupt};

use std::time::Duration;

use nix::errno::Errno;

/// A device, as its driver has it: registers of 32 bits, and memory that both reach.
pub trait Device {
    /// Memory that the device reaches.
    type Memory: DeviceMemory;

    /// Bytes of its registers.
    fn size(&self) -> usize;

    /// Reads the register at an offset, a multiple of 4.
    ///
    /// # Panics
    /// If there is none.
    fn read(&self, offset: usize) -> u32;

    /// Writes the register at an offset. What was written to memory before is there for the device.
    ///
    /// # Panics
    /// If there is none.
    fn write(&mut self, offset: usize, value: u32);

    /// Lets the device access memory, or not.
    ///
    /// # Errors
    /// Of the kernel.
    fn enable_dma(&mut self, is_on: bool) -> Result<(), Errno>;

    /// Allocates zeroed memory in whole pages, which lie one behind the other for the device.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    fn allocate(&mut self, bytes: usize) -> Result<Self::Memory, Errno>;

    /// Has the device interrupt for [`Device::wait`], by its first message. Returns whether it can.
    fn enable_interrupt(&mut self) -> bool {
        false
    }

    /// Waits for an interrupt, unless one has come since the last call: no longer than a time, and less if
    /// a signal comes. Lets others run if the device cannot interrupt.
    fn wait(&mut self, timeout: Duration) {
        let _ = timeout;
        std::thread::yield_now();
    }
}

/// A device that has registers of 8 and 16 bits as well, as those of virtio have.
pub trait SmallRegisters: Device {
    /// Reads the register of 8 bits at an offset.
    ///
    /// # Panics
    /// If there is none.
    fn read8(&self, offset: usize) -> u8;

    /// Writes the register of 8 bits at an offset, as [`Device::write`] does.
    ///
    /// # Panics
    /// If there is none.
    fn write8(&mut self, offset: usize, value: u8);

    /// Reads the register of 16 bits at an offset, a multiple of 2.
    ///
    /// # Panics
    /// If there is none.
    fn read16(&self, offset: usize) -> u16;

    /// Writes the register of 16 bits at an offset, a multiple of 2, as [`Device::write`] does.
    ///
    /// # Panics
    /// If there is none.
    fn write16(&mut self, offset: usize, value: u16);
}

/// Memory that a device reaches and may change at any time.
pub trait DeviceMemory {
    /// Returns where the device finds it: a multiple of the page size.
    fn device_address(&self) -> u64;

    /// Copies bytes out of it.
    ///
    /// # Panics
    /// Beyond its end.
    fn read(&self, at: usize, to: &mut [u8]);

    /// Copies bytes into it.
    ///
    /// # Panics
    /// Beyond its end.
    fn write(&mut self, at: usize, from: &[u8]);

    /// Reads the aligned word of 32 bits at an offset at once. What the device wrote before it is there
    /// for later reads.
    ///
    /// # Panics
    /// Beyond its end.
    fn word(&self, at: usize) -> u32;

    /// Writes the aligned word of 32 bits at an offset at once. What was written before it is there for
    /// the device when the word is.
    ///
    /// # Panics
    /// Beyond its end.
    fn set_word(&mut self, at: usize, value: u32);
}
