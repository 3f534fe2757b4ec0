//! Driver of virtio network cards.
//!
//! One queue for frames that arrive and one for those that leave, both polled; only the first interrupts, and
//! only when it is asked to. Each descriptor keeps its own buffer of 2 KiB, into and out of which frames
//! are copied. Of what cards can do for their drivers nothing is used: frames have their usual size, and
//! checksums are the network stack's.
//!
//! A card is not trusted: what makes no sense ends its use.
//!
//! Source: Virtual I/O Device (VIRTIO) 1.2; its chapters are named where they are followed.

mod error;
mod layout;
mod queue;
mod registers;

pub use self::error::Error;
pub use self::layout::{BAR, Layout, REGISTER_BYTES};
use self::queue::{BUFFER, ENTRIES, PARTS, Queue};
use self::registers::Registers;
use crate::net::{FRAME_MAX, Nic};
use crate::pci::SmallRegisters;

/// Queues (5.1.2).
const RECEIVE: u16 = 0;
const TRANSMIT: u16 = 1;
/// Bytes in front of each frame (5.1.6): what the card could do with it, which is nothing.
const HEADER: usize = 12;
/// Features (5.1.3, 6): the card says its address, has registers of virtio 1.0, and is behind an IOMMU
/// for this driver, too.
const ADDRESS: u64 = 1 << 5;
const VERSION_1: u64 = 1 << 32;
const ACCESS_PLATFORM: u64 = 1 << 33;

/// A network card, which is reset when it is dropped.
#[derive(Debug)]
pub struct VirtioNet<D: SmallRegisters> {
    registers: Registers<D>,
    receive: Queue<D::Memory>,
    transmit: Queue<D::Memory>,
    /// Where the card is told of changes to each queue, and whether it is to be told.
    notify: [usize; 2],
    has_changed: [bool; 2],
    can_interrupt: bool,
    address: [u8; 6],
}

impl<D: SmallRegisters> VirtioNet<D> {
    /// Starts a card, which has just been reset.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(device: D, layout: Layout) -> Result<Self, Error> {
        let mut registers = Registers::new(device, layout)?;
        registers.reset()?;
        registers.negotiate(ADDRESS | VERSION_1 | ACCESS_PLATFORM, ADDRESS | VERSION_1)?;
        registers.device.enable_dma(true)?;
        registers.select_queue(RECEIVE, ENTRIES)?;
        let can_interrupt = registers.set_queue_message();
        let (mut receive, first) = create_queue(&mut registers, RECEIVE)?;
        let (transmit, second) = create_queue(&mut registers, TRANSMIT)?;
        registers.begin();
        while let Some(number) = receive.take_free() {
            receive.post(number, BUFFER);
        }
        let address = std::array::from_fn(|at| registers.card_byte(at));
        let mut card = Self {
            registers,
            receive,
            transmit,
            notify: [first, second],
            has_changed: [true, false],
            can_interrupt,
            address,
        };
        card.tell();
        Ok(card)
    }

    /// Tells the card of changes to its queues.
    fn tell(&mut self) {
        for number in [RECEIVE, TRANSMIT] {
            let index = usize::from(number);
            if std::mem::take(&mut self.has_changed[index]) {
                self.registers.notify(self.notify[index], number);
            }
        }
    }

    /// Takes back the buffers of frames that have left.
    fn reclaim(&mut self) -> Result<(), Error> {
        while let Some((number, _)) = self.transmit.take_used()? {
            self.transmit.put_free(number);
        }
        Ok(())
    }
}

/// Creates a queue, and has the card use it. Returns it, and where the card is told of changes.
fn create_queue<D: SmallRegisters>(
    registers: &mut Registers<D>,
    number: u16,
) -> Result<(Queue<D::Memory>, usize), Error> {
    let parts = registers.device.allocate(PARTS)?;
    let buffers = registers.device.allocate(usize::from(ENTRIES) * BUFFER)?;
    let size = registers.select_queue(number, ENTRIES)?;
    let queue = Queue::new(size, number == RECEIVE, parts, buffers);
    let notify = registers.enable_queue(queue.device_addresses())?;
    Ok((queue, notify))
}

impl<D: SmallRegisters> Nic for VirtioNet<D> {
    type Error = Error;

    fn address(&self) -> [u8; 6] {
        self.address
    }

    fn receive(&mut self, to: &mut Vec<u8>) -> Result<bool, Error> {
        let Some((number, length)) = self.receive.take_used()? else {
            return Ok(false);
        };
        let length = length.saturating_sub(HEADER);
        to.resize(length, 0);
        self.receive.read(number, HEADER, to);
        self.receive.post(number, BUFFER);
        self.has_changed[usize::from(RECEIVE)] = true;
        Ok(true)
    }

    fn has_room(&self) -> bool {
        !self.transmit.is_full()
    }

    fn send(&mut self, frame: &[u8]) {
        let length = frame.len().min(FRAME_MAX);
        let Some(number) = self.transmit.take_free() else {
            return;
        };
        self.transmit.write(number, 0, &[0; HEADER]);
        self.transmit.write(number, HEADER, &frame[..length]);
        self.transmit.post(number, HEADER + length);
        self.has_changed[usize::from(TRANSMIT)] = true;
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.tell();
        self.reclaim()
    }

    fn can_interrupt(&self) -> bool {
        self.can_interrupt
    }

    fn expect_interrupt(&mut self, is_expected: bool) -> bool {
        self.receive.expect_interrupt(is_expected);
        is_expected && !self.receive.has_used()
    }

    fn check(&self) -> Result<(), Error> {
        match self.registers.has_failed() {
            true => Err(Error::Failed),
            false => Ok(()),
        }
    }
}

impl<D: SmallRegisters> Drop for VirtioNet<D> {
    fn drop(&mut self) {
        // A card that does not answer any more loses its access to memory all the same.
        let _ = self.registers.reset();
        let _ = self.registers.device.enable_dma(false);
    }
}

#[cfg(test)]
mod tests;
