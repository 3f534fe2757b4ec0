//! A split virtqueue (2.7) whose descriptors each have a buffer of their own.

use std::sync::atomic::{Ordering, fence};

use super::error::Error;
use crate::pci::DeviceMemory;

/// Most entries of a queue: its parts lie at fixed places.
pub(super) const ENTRIES: u16 = 256;
/// Bytes of a buffer.
pub(super) const BUFFER: usize = 2048;
/// Bytes of the parts of a queue.
pub(super) const PARTS: usize = 0x3000;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
/// Flag of a descriptor: the device writes its buffer.
const WRITES: u16 = 2;
/// Flag of the available ring: the driver looks by itself.
const NO_INTERRUPT: u32 = 1;

/// A queue.
#[derive(Debug)]
pub(super) struct Queue<M> {
    parts: M,
    buffers: M,
    size: u16,
    /// Whether the device writes to the buffers, or reads them.
    is_written: bool,
    /// Flags of the available ring.
    flags: u32,
    /// Descriptors made available, and used ones that were taken, since the start.
    available: u16,
    used: u16,
    /// Which descriptors the device has, by number.
    posted: Vec<bool>,
    free: Vec<u16>,
}

impl<M: DeviceMemory> Queue<M> {
    /// Makes a queue in zeroed memory.
    pub(super) fn new(size: u16, is_written: bool, parts: M, buffers: M) -> Self {
        let size = size.min(ENTRIES);
        let mut queue = Self {
            parts,
            buffers,
            size,
            is_written,
            flags: NO_INTERRUPT,
            available: 0,
            used: 0,
            posted: vec![false; usize::from(size)],
            free: (0..size).rev().collect(),
        };
        queue.tell_available();
        queue
    }

    /// Tells the device how far the available ring goes, and whether it is to interrupt.
    fn tell_available(&mut self) {
        let word = self.flags | u32::from(self.available) << 16;
        self.parts.set_word(AVAILABLE, word);
    }

    /// Has the device interrupt when it has used a descriptor, or not.
    pub(super) fn expect_interrupt(&mut self, is_expected: bool) {
        self.flags = if is_expected { 0 } else { NO_INTERRUPT };
        self.tell_available();
        // The device writes its ring, then looks at the flag: here it is the other way round (2.7.7.2).
        fence(Ordering::SeqCst);
    }

    /// Whether the device has used a descriptor that was not taken back.
    pub(super) fn has_used(&self) -> bool {
        (self.parts.word(USED) >> 16) as u16 != self.used
    }

    /// Returns where the device finds its parts: descriptors, available and used ring.
    pub(super) fn device_addresses(&self) -> [u64; 3] {
        let start = self.parts.device_address();
        [start, start + AVAILABLE as u64, start + USED as u64]
    }

    /// Takes a descriptor that the device does not have.
    pub(super) fn take_free(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Whether the device has all descriptors.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Puts a free descriptor back.
    pub(super) fn put_free(&mut self, number: u16) {
        self.free.push(number);
    }

    /// Gives the device a descriptor, with so many bytes of its buffer. It may use it from now on.
    pub(super) fn post(&mut self, number: u16, length: usize) {
        let buffer = self.buffers.device_address() + (usize::from(number) * BUFFER) as u64;
        let flags = if self.is_written { WRITES } else { 0 };
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&buffer.to_le_bytes());
        descriptor[8..12].copy_from_slice(&(length as u32).to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        self.parts.write(usize::from(number) * 16, &descriptor);
        let slot = usize::from(self.available % self.size);
        let at = AVAILABLE + 4 + 2 * slot;
        self.parts.write(at, &number.to_le_bytes());
        self.posted[usize::from(number)] = true;
        self.available = self.available.wrapping_add(1);
        self.tell_available();
    }

    /// Takes back the next descriptor that the device has used: its number, and how many bytes of its
    /// buffer were written.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub(super) fn take_used(&mut self) -> Result<Option<(u16, usize)>, Error> {
        if !self.has_used() {
            return Ok(None);
        }
        let at = USED + 4 + 8 * usize::from(self.used % self.size);
        let (number, length) = (self.parts.word(at), self.parts.word(at + 4) as usize);
        let posted = self.posted.get_mut(number as usize);
        let was_posted = posted.is_some_and(std::mem::take);
        if !was_posted || length > BUFFER {
            return Err(Error::Malformed("a used descriptor"));
        }
        self.used = self.used.wrapping_add(1);
        Ok(Some((number as u16, length)))
    }

    /// Copies out of a buffer.
    pub(super) fn read(&self, number: u16, offset: usize, to: &mut [u8]) {
        self.buffers.read(usize::from(number) * BUFFER + offset, to);
    }

    /// Copies into a buffer.
    pub(super) fn write(&mut self, number: u16, offset: usize, from: &[u8]) {
        self.buffers
            .write(usize::from(number) * BUFFER + offset, from);
    }
}
