//! Registers of a virtio function (4.1.4.3), and the order in which a driver starts it (3.1.1).

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::Error;
use super::layout::Layout;
use crate::pci::SmallRegisters;

/// Offsets from the start of the common registers.
mod common {
    pub(super) const DEVICE_FEATURE_SELECT: usize = 0x00;
    pub(super) const DEVICE_FEATURE: usize = 0x04;
    pub(super) const DRIVER_FEATURE_SELECT: usize = 0x08;
    pub(super) const DRIVER_FEATURE: usize = 0x0c;
    pub(super) const STATUS: usize = 0x14;
    pub(super) const QUEUE_SELECT: usize = 0x16;
    pub(super) const QUEUE_SIZE: usize = 0x18;
    pub(super) const QUEUE_MESSAGE: usize = 0x1a;
    pub(super) const QUEUE_ENABLE: usize = 0x1c;
    pub(super) const QUEUE_NOTIFY_OFFSET: usize = 0x1e;
    pub(super) const QUEUE_DESCRIPTORS: usize = 0x20;
    /// Last byte of them all.
    pub(super) const END: usize = 0x38;
}

/// Bits of the status.
pub(super) mod status {
    pub(crate) const ACKNOWLEDGE: u8 = 1;
    pub(crate) const DRIVER: u8 = 2;
    pub(crate) const DRIVER_OK: u8 = 4;
    pub(crate) const FEATURES_OK: u8 = 8;
    pub(crate) const NEEDS_RESET: u8 = 64;
    pub(crate) const FAILED: u8 = 128;
}

/// How long a reset may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(1);

/// The registers.
#[derive(Debug)]
pub(super) struct Registers<D> {
    pub(super) device: D,
    layout: Layout,
}

impl<D: SmallRegisters> Registers<D> {
    /// Takes over a function whose registers are there.
    pub(super) fn new(device: D, layout: Layout) -> Result<Self, Error> {
        let ends = [layout.common + common::END, layout.card + 6];
        match ends.iter().all(|end| *end <= device.size()) {
            true => Ok(Self { device, layout }),
            false => Err(Error::Malformed("its registers are beyond their BAR")),
        }
    }

    fn common(&self, offset: usize) -> usize {
        self.layout.common + offset
    }

    /// Reads the byte of the card's own registers at an offset.
    pub(super) fn card_byte(&self, offset: usize) -> u8 {
        self.device.read8(self.layout.card + offset)
    }

    pub(super) fn status(&self) -> u8 {
        self.device.read8(self.common(common::STATUS))
    }

    fn set_status(&mut self, status: u8) {
        self.device.write8(self.common(common::STATUS), status);
    }

    /// Resets the device, which keeps its registers.
    pub(super) fn reset(&mut self) -> Result<(), Error> {
        self.set_status(0);
        let began = Instant::now();
        while self.status() != 0 {
            if began.elapsed() > RESET_TIMEOUT {
                return Err(Error::TimedOut("reset"));
            }
            sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Chooses those of `wanted` that the device offers, of which it must have `needed`. Returns them.
    pub(super) fn negotiate(&mut self, wanted: u64, needed: u64) -> Result<u64, Error> {
        self.set_status(status::ACKNOWLEDGE | status::DRIVER);
        let mut offered = 0;
        for half in 0..2 {
            let select = self.common(common::DEVICE_FEATURE_SELECT);
            self.device.write(select, half);
            let bits = self.device.read(self.common(common::DEVICE_FEATURE));
            offered |= u64::from(bits) << (32 * half);
        }
        let chosen = offered & wanted;
        if chosen & needed != needed {
            return Err(Error::Unsupported(
                "it lacks a feature that the driver needs",
            ));
        }
        for half in 0..2 {
            let select = self.common(common::DRIVER_FEATURE_SELECT);
            self.device.write(select, half);
            let bits = (chosen >> (32 * half)) as u32;
            self.device.write(self.common(common::DRIVER_FEATURE), bits);
        }
        self.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
        match self.status() & status::FEATURES_OK {
            0 => Err(Error::Unsupported("it refuses the driver's features")),
            _ => Ok(chosen),
        }
    }

    /// Selects a queue, which shall have `most` entries at most. Returns their number.
    pub(super) fn select_queue(&mut self, number: u16, most: u16) -> Result<u16, Error> {
        let select = self.common(common::QUEUE_SELECT);
        self.device.write16(select, number);
        let offered = self.device.read16(self.common(common::QUEUE_SIZE));
        if !offered.is_power_of_two() {
            return Err(Error::Malformed("the size of a queue"));
        }
        let size = offered.min(most);
        self.device.write16(self.common(common::QUEUE_SIZE), size);
        Ok(size)
    }

    /// Has the selected queue interrupt by the first message. Returns whether it does.
    pub(super) fn set_queue_message(&mut self) -> bool {
        const FIRST: u16 = 0;
        let at = self.common(common::QUEUE_MESSAGE);
        self.device.write16(at, FIRST);
        self.device.read16(at) == FIRST
    }

    /// Has the device use the selected queue, whose parts are at these addresses: descriptors, available
    /// and used ring. Returns where it is told of changes.
    pub(super) fn enable_queue(&mut self, parts: [u64; 3]) -> Result<usize, Error> {
        let first = self.common(common::QUEUE_DESCRIPTORS);
        for (address, at) in parts.into_iter().zip((first..).step_by(8)) {
            self.device.write(at, address as u32);
            self.device.write(at + 4, (address >> 32) as u32);
        }
        let offset = self.device.read16(self.common(common::QUEUE_NOTIFY_OFFSET));
        let notify = self.layout.notify + usize::from(offset) * self.layout.notify_distance;
        if notify + 2 > self.device.size() || !notify.is_multiple_of(2) {
            return Err(Error::Malformed("where it is notified"));
        }
        self.device.write16(self.common(common::QUEUE_ENABLE), 1);
        Ok(notify)
    }

    /// Has the device begin.
    pub(super) fn begin(&mut self) {
        let so_far = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK;
        self.set_status(so_far | status::DRIVER_OK);
    }

    /// Tells the device that a queue has changed.
    pub(super) fn notify(&mut self, at: usize, number: u16) {
        self.device.write16(at, number);
    }

    /// Whether the device has gone, or has given up.
    pub(super) fn has_failed(&self) -> bool {
        self.status() & (status::NEEDS_RESET | status::FAILED) != 0
    }
}
