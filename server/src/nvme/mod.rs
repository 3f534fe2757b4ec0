//! Driver of NVMe controllers.
//!
//! One queue pair for administration and one for I/O. For completions the driver looks a while, then waits for an
//! interrupt (MSI-X), if the device can interrupt. Data go through a
//! buffer that the device reaches, with a list of its pages (PRP). What one call asks for is under way at once, as many
//! commands as buffer and queue have room for.
//!
//! Each wait has a limit. A controller that exceeds it, that reports a fatal error or that has gone is
//! stopped: all calls fail from then on, as nobody knows what of the last one it has done.
//!
//! Source: NVM Express Base Specification 1.4; its chapters are named where they are followed.

mod command;
mod controller;
mod error;
mod identify;
mod queue;

use std::ops::Range;
use std::time::Duration;

use nix::errno::Errno;

use self::command::Command;
use self::controller::Controller;
pub use self::error::Error;
use self::identify::{Features, Namespace};
use self::queue::Queue;
use crate::block::{Access, BlockDevice, DeviceError, Piece, check};
use crate::pci::{Device, DeviceMemory};

/// Bytes of registers that the driver needs: two queue pairs, whatever the distance of their doorbells.
pub const REGISTER_BYTES: u64 = 0x1000 + 4 * (4 << 15);
/// Size of a page, for the controller as well.
const PAGE: usize = 4096;
/// Bytes of an address in a list of pages.
const ADDRESS: usize = 8;
/// Bytes of the buffer for data.
const BUFFER: usize = 512 << 10;
const ADMINISTRATION: u16 = 0;
const IO: u16 = 1;
/// Entries of a queue, if the controller allows as many.
const ENTRIES: u16 = 32;

/// How long commands may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Those of administration.
    pub administration: Duration,
    /// Those of I/O.
    pub io: Duration,
}

impl Default for Limits {
    /// Returns those of Linux.
    fn default() -> Self {
        Self {
            administration: Duration::from_secs(60),
            io: Duration::from_secs(30),
        }
    }
}

/// How the driver learns that a command is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completions {
    /// It looks until it is. Other threads of the core run between looks.
    Polled,
    /// It looks for some microseconds, then waits for an interrupt, if there can be one.
    Interrupts,
}

impl Completions {
    /// Returns what the option `--poll` asks for, if it is given.
    #[must_use]
    pub const fn of_option(poll: bool) -> Self {
        match poll {
            true => Self::Polled,
            false => Self::Interrupts,
        }
    }
}

/// An NVMe controller, and the first namespace that it has. Shut down when it is dropped.
#[derive(Debug)]
pub struct Nvme<D: Device> {
    controller: Controller<D>,
    io: Queue<D::Memory>,
    buffer: D::Memory,
    /// Addresses of the buffer's pages but for the first, as the controller wants them.
    list: D::Memory,
    features: Features,
    namespace: Namespace,
    limits: Limits,
}

impl<D: Device> Nvme<D> {
    /// Starts a controller, which has just been reset, and finds its first namespace.
    ///
    /// # Errors
    /// [`Error`].
    pub fn start(device: D, limits: Limits, completions: Completions) -> Result<Self, Error> {
        let limit = limits.administration;
        let mut controller = Controller::start(device, ENTRIES, limit, completions)?;
        let mut buffer = controller.allocate(BUFFER)?;
        let features = identify::features(&mut controller, &buffer)?;
        let namespace = identify::first_namespace(&mut controller, &buffer)?;
        let io = controller.create_queue(IO, ENTRIES)?;
        let mut list = controller.allocate(PAGE)?;
        write_list(&mut list, buffer.device_address());
        buffer.write(0, &[0; PAGE]);
        Ok(Self {
            controller,
            io,
            buffer,
            list,
            features,
            namespace,
            limits,
        })
    }

    /// Returns what it calls itself: model and serial number.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}, {}", self.features.model, self.features.serial)
    }

    /// Whether it can zero blocks without being sent zeros.
    #[must_use]
    pub fn can_write_zeroes(&self) -> bool {
        self.features.can_write_zeroes
    }

    /// Zeroes blocks.
    ///
    /// # Errors
    /// As of [`BlockDevice::write`]; [`Errno::EOPNOTSUPP`] if it cannot.
    pub fn write_zeroes(&mut self, block: u64, count: u64) -> Result<(), DeviceError> {
        /// Blocks of a command: their number is stored less one in 16 bits.
        const MOST: u64 = 1 << 16;
        let access = Access::Write(block);
        let failed = |errno| DeviceError { access, errno };
        if !self.can_write_zeroes() {
            return Err(failed(Errno::EOPNOTSUPP));
        }
        let end = block.checked_add(count);
        if end.is_none_or(|end| end > self.namespace.blocks) {
            return Err(failed(Errno::ENXIO));
        }
        let mut done = 0;
        while done < count {
            let part = (count - done).min(MOST);
            let command = Command::write_zeroes(self.namespace.number, block + done, part as u32);
            self.submit(command)
                .map_err(|error| failed(error.errno()))?;
            done += part;
        }
        Ok(())
    }

    /// Executes a command of I/O.
    fn submit(&mut self, command: Command) -> Result<(), Error> {
        let limit = self.limits.io;
        self.controller.execute(&mut self.io, command, limit)?;
        Ok(())
    }

    /// Returns the most bytes of a command.
    fn transfer_max(&self) -> usize {
        self.features.transfer_max.min(BUFFER)
    }

    /// Adds blocks to what the next commands move, as many as there is room for. Returns the part of the buffer that
    /// is theirs, empty if there is none.
    fn plan(&self, parts: &mut Vec<Part>, block: u64, length: usize) -> Range<usize> {
        let most = self.transfer_max();
        if let Some(last) = parts.last_mut()
            && last.block + (last.range.len() / self.namespace.block_size) as u64 == block
            && last.range.len() < most
        {
            let start = last.range.end;
            last.range.end += length.min(most - last.range.len()).min(BUFFER - start);
            return start..last.range.end;
        }
        let end = parts.last().map_or(0, |last| last.range.end);
        let start = end.next_multiple_of(PAGE);
        if parts.len() == self.io.depth() || start >= BUFFER {
            return end..end;
        }
        let range = start..start + length.min(most).min(BUFFER - start);
        let planned = range.clone();
        parts.push(Part { block, range });
        planned
    }

    /// Has the controller read or write all parts at once.
    fn transfer(&mut self, is_write: bool, parts: &[Part]) -> Result<(), DeviceError> {
        let command = |part: &Part| self.command_for(is_write, part);
        let commands: Vec<_> = parts.iter().map(command).collect();
        let (queue, limit) = (&mut self.io, self.limits.io);
        let done = self.controller.execute_all(queue, &commands, limit, |_| ());
        done.map_err(|(index, error)| {
            let block = parts[index].block;
            let access = match is_write {
                true => Access::Write(block),
                false => Access::Read(block),
            };
            let errno = error.errno();
            DeviceError { access, errno }
        })
    }

    fn command_for(&self, is_write: bool, part: &Part) -> Command {
        let count = (part.range.len() / self.namespace.block_size) as u32;
        let command = match is_write {
            true => Command::write(self.namespace.number, part.block, count),
            false => Command::read(self.namespace.number, part.block, count),
        };
        let start = self.buffer.device_address() + part.range.start as u64;
        let second = match part.range.len() {
            0..=PAGE => 0,
            length if length <= 2 * PAGE => start + PAGE as u64,
            _ => self.list.device_address() + (part.range.start / PAGE * ADDRESS) as u64,
        };
        command.with_data(start, second)
    }
}

/// What one command moves: blocks, and the part of the buffer for them, from the start of a page on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    block: u64,
    range: Range<usize>,
}

/// Writes the addresses of the buffer's pages but for the first.
fn write_list(list: &mut impl DeviceMemory, buffer: u64) {
    for index in 1..BUFFER / PAGE {
        let address = buffer + (index * PAGE) as u64;
        list.write(ADDRESS * (index - 1), &address.to_le_bytes());
    }
}

impl<D: Device> BlockDevice for Nvme<D> {
    fn block_size(&self) -> usize {
        self.namespace.block_size
    }

    fn block_count(&self) -> u64 {
        self.namespace.blocks
    }

    fn read(&mut self, block: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        check(self, Access::Read(block), to.len())?;
        let (mut block, mut to) = (block, to);
        while !to.is_empty() {
            let (mut parts, mut planned) = (Vec::new(), 0);
            while planned < to.len() {
                let at = block + (planned / self.namespace.block_size) as u64;
                match self.plan(&mut parts, at, to.len() - planned) {
                    range if range.is_empty() => break,
                    range => planned += range.len(),
                }
            }
            self.transfer(false, &parts)?;
            for part in &parts {
                let (own, rest) = to.split_at_mut(part.range.len());
                self.buffer.read(part.range.start, own);
                to = rest;
            }
            block += (planned / self.namespace.block_size) as u64;
        }
        Ok(())
    }

    fn write(&mut self, block: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.write_each(&[(block, from)])
    }

    fn write_each(&mut self, pieces: &[Piece<'_>]) -> Result<(), DeviceError> {
        for (block, piece) in pieces {
            check(self, Access::Write(*block), piece.len())?;
        }
        let mut parts = Vec::new();
        for (block, piece) in pieces {
            let mut done = 0;
            while done < piece.len() {
                let at = block + (done / self.namespace.block_size) as u64;
                let range = self.plan(&mut parts, at, piece.len() - done);
                if range.is_empty() {
                    self.transfer(true, &parts)?;
                    parts.clear();
                }
                self.buffer
                    .write(range.start, &piece[done..done + range.len()]);
                done += range.len();
            }
        }
        match parts.is_empty() {
            true => Ok(()),
            false => self.transfer(true, &parts),
        }
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        if !self.features.has_cache {
            return match self.controller.is_stopped() {
                true => Err(flush_failure(Errno::EIO)),
                false => Ok(()),
            };
        }
        let flushed = self.submit(Command::flush(self.namespace.number));
        flushed.map_err(|error| flush_failure(error.errno()))
    }
}

fn flush_failure(errno: Errno) -> DeviceError {
    DeviceError {
        access: Access::Flush,
        errno,
    }
}

#[cfg(test)]
mod tests;
