//! The controller: its start, commands, and its end (3.1, 7.6).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::command::{COMMAND_SIZE, COMPLETION_SIZE, Command, Completion};
use super::queue::Queue;
use super::{ADMINISTRATION, Completions, Error, PAGE};
use crate::pci::Device;

/// Registers.
mod register {
    pub(super) const CAPABILITIES: usize = 0x00;
    pub(super) const CONFIGURATION: usize = 0x14;
    pub(super) const STATUS: usize = 0x1c;
    pub(super) const QUEUE_SIZES: usize = 0x24;
    pub(super) const SUBMISSIONS: usize = 0x28;
    pub(super) const COMPLETIONS: usize = 0x30;
    pub(super) const DOORBELLS: usize = 0x1000;
}

const ENABLE: u32 = 1;
/// Entries of 2^6 and 2^4 bytes; pages of 4 KiB, commands of NVM, in turn: 0.
const CONFIGURATION: u32 = 6 << 16 | 4 << 20;
const SHUT_DOWN: u32 = 1 << 14;
const SHUTDOWN_MASK: u32 = 3 << 14;

const READY: u32 = 1;
const FATAL: u32 = 2;
const SHUTDOWN_STATE: u32 = 3 << 2;
const SHUTDOWN_DONE: u32 = 2 << 2;
const GONE: u32 = u32::MAX;

/// Longest time for a shutdown, which has to write the device's own cache.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// What a controller can do (3.1.1).
#[derive(Clone, Copy, Debug)]
struct Capabilities {
    entries_max: u16,
    /// For a start or a stop.
    timeout: Duration,
    /// Bytes from one doorbell to the next.
    distance: usize,
}

impl Capabilities {
    fn read(device: &impl Device) -> Result<Self, Error> {
        let word = |at| device.read(register::CAPABILITIES + at);
        let (low, high) = (word(0), word(4));
        if (low, high) == (GONE, GONE) {
            return Err(Error::Gone);
        }
        if high >> 16 & 0xf != 0 {
            return Err(Error::Unsupported("only pages larger than 4 KiB"));
        }
        if high >> 5 & 1 == 0 {
            return Err(Error::Unsupported("no commands of NVM"));
        }
        Ok(Self {
            entries_max: (low as u16).saturating_add(1),
            timeout: Duration::from_millis(500) * (low >> 24).max(1),
            distance: 4 << (high & 0xf),
        })
    }
}

/// A controller, and its queue of administration. Shut down when it is dropped.
#[derive(Debug)]
pub(super) struct Controller<D: Device> {
    device: D,
    capabilities: Capabilities,
    administration: Option<Queue<D::Memory>>,
    limit: Duration,
    /// Whether it interrupts.
    interrupts: bool,
    is_stopped: bool,
}

impl<D: Device> Controller<D> {
    /// Starts a controller.
    pub(super) fn start(
        device: D,
        entries: u16,
        limit: Duration,
        completions: Completions,
    ) -> Result<Self, Error> {
        let capabilities = Capabilities::read(&device)?;
        let end = register::DOORBELLS + 4 * capabilities.distance;
        if device.size() < end {
            return Err(Error::Malformed("doorbells beyond its registers"));
        }
        let mut controller = Self {
            device,
            capabilities,
            administration: None,
            limit,
            interrupts: false,
            is_stopped: false,
        };
        controller.disable()?;
        controller.interrupts = match completions {
            Completions::Polled => false,
            Completions::Interrupts => controller.device.enable_interrupt(),
        };
        let queue = controller.new_queue(ADMINISTRATION, entries)?;
        controller.enable(&queue, entries)?;
        controller.administration = Some(queue);
        Ok(controller)
    }

    /// Allocates memory that the controller reaches.
    pub(super) fn allocate(&mut self, bytes: usize) -> Result<D::Memory, Error> {
        Ok(self.device.allocate(bytes)?)
    }

    /// Whether it does nothing any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn status(&self) -> u32 {
        self.device.read(register::STATUS)
    }

    fn configuration(&self) -> u32 {
        self.device.read(register::CONFIGURATION)
    }

    fn configure(&mut self, value: u32) {
        self.device.write(register::CONFIGURATION, value);
    }

    /// Waits until the bits of a mask in the status have a value.
    fn wait_for_status(
        &self,
        (mask, value): (u32, u32),
        limit: Duration,
        what: &'static str,
    ) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            match self.status() {
                GONE => return Err(Error::Gone),
                status if status & mask == value => return Ok(()),
                status if status & FATAL != 0 && value & READY != 0 => return Err(Error::Fatal),
                _ if began.elapsed() > limit => return Err(Error::TimedOut(what)),
                _ => std::thread::yield_now(),
            }
        }
    }

    fn disable(&mut self) -> Result<(), Error> {
        let configuration = self.configuration();
        if configuration & ENABLE != 0 {
            self.configure(configuration & !ENABLE & !SHUTDOWN_MASK);
        }
        self.wait_for_status((READY, 0), self.capabilities.timeout, "stop")
    }

    fn enable(&mut self, queue: &Queue<D::Memory>, entries: u16) -> Result<(), Error> {
        let last = u32::from(self.entries(entries) - 1);
        self.device.write(register::QUEUE_SIZES, last << 16 | last);
        let (submissions, completions) = queue.device_addresses();
        self.write_address(register::SUBMISSIONS, submissions);
        self.write_address(register::COMPLETIONS, completions);
        self.device.enable_dma(true)?;
        self.configure(CONFIGURATION);
        self.configure(CONFIGURATION | ENABLE);
        self.wait_for_status((READY | FATAL, READY), self.capabilities.timeout, "start")
    }

    fn write_address(&mut self, at: usize, address: u64) {
        self.device.write(at, address as u32);
        self.device.write(at + 4, (address >> 32) as u32);
    }

    fn entries(&self, wanted: u16) -> u16 {
        wanted.min(self.capabilities.entries_max).max(2)
    }

    fn new_queue(&mut self, number: u16, entries: u16) -> Result<Queue<D::Memory>, Error> {
        let entries = self.entries(entries);
        let mut part = |size: usize| {
            let bytes = (usize::from(entries) * size).next_multiple_of(PAGE);
            self.device.allocate(bytes)
        };
        let (submissions, completions) = (part(COMMAND_SIZE)?, part(COMPLETION_SIZE)?);
        Ok(Queue::new(number, entries, submissions, completions))
    }

    /// Creates a queue pair for I/O.
    pub(super) fn create_queue(
        &mut self,
        number: u16,
        entries: u16,
    ) -> Result<Queue<D::Memory>, Error> {
        let queue = self.new_queue(number, entries)?;
        let (submissions, completions) = queue.device_addresses();
        let entries = self.entries(entries);
        self.administer(Command::one_queue_pair())?;
        let create = Command::create_completion_queue(number, entries, self.interrupts);
        self.administer(create.with_data(completions, 0))?;
        let create = Command::create_submission_queue(number, entries);
        self.administer(create.with_data(submissions, 0))?;
        Ok(queue)
    }

    /// Executes a command of administration. Returns its result.
    pub(super) fn administer(&mut self, command: Command) -> Result<u32, Error> {
        let mut queue = self.administration.take().ok_or(Error::Stopped)?;
        let result = self.execute(&mut queue, command, self.limit);
        self.administration = Some(queue);
        result
    }

    /// Executes a command. Returns its result. If the controller fails, not the command alone, it is
    /// stopped.
    pub(super) fn execute(
        &mut self,
        queue: &mut Queue<D::Memory>,
        command: Command,
        limit: Duration,
    ) -> Result<u32, Error> {
        let mut result = 0;
        let done = |completion: &Completion| result = completion.result;
        let executed = self.execute_all(queue, &[command], limit, done);
        executed.map_err(|(_, error)| error)?;
        Ok(result)
    }

    /// Executes commands at once, at most as many as the queue is deep, and returns when all are complete; `done` is
    /// told of those that have succeeded. If any fails: the index of the first that did, and why.
    pub(super) fn execute_all(
        &mut self,
        queue: &mut Queue<D::Memory>,
        commands: &[Command],
        limit: Duration,
        mut done: impl FnMut(&Completion),
    ) -> Result<(), (usize, Error)> {
        if self.is_stopped {
            return Err((0, Error::Stopped));
        }
        let mut under_way = self.submit(queue, commands);
        let (mut failed, mut head) = (BTreeMap::new(), 0);
        for _ in commands {
            let completed = self.complete_one(queue, &mut under_way, limit);
            let (index, completion, next) = completed.map_err(|error| {
                self.stop();
                (0, error)
            })?;
            head = next;
            match completion.error() {
                None => done(&completion),
                Some(error) => drop(failed.insert(index, error)),
            }
        }
        self.ring(2 * usize::from(queue.number()) + 1, head);
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// Submits commands. Returns their numbers.
    fn submit(&mut self, queue: &mut Queue<D::Memory>, commands: &[Command]) -> Vec<Option<u16>> {
        let submitted = commands.iter().map(|command| queue.submit(*command));
        let (numbers, tails): (Vec<_>, Vec<_>) = submitted.unzip();
        if let Some(tail) = tails.last() {
            self.ring(2 * usize::from(queue.number()), *tail);
        }
        numbers.into_iter().map(Some).collect()
    }

    /// Waits for a completion of those that are under way, of which the command is none any more. Returns its index, the
    /// completion, and what its doorbell is to be told.
    fn complete_one(
        &mut self,
        queue: &mut Queue<D::Memory>,
        under_way: &mut [Option<u16>],
        limit: Duration,
    ) -> Result<(usize, Completion, u16), Error> {
        const NO_COMMAND: Error = Error::Malformed("a completion of no command");
        let (completion, head) = self.wait_for_completion(queue, limit)?;
        let is_its = |number: &Option<u16>| *number == Some(completion.number);
        let index = under_way.iter().position(is_its).ok_or(NO_COMMAND)?;
        under_way[index] = None;
        Ok((index, completion, head))
    }

    fn ring(&mut self, doorbell: usize, value: u16) {
        let at = register::DOORBELLS + doorbell * self.capabilities.distance;
        self.device.write(at, value.into());
    }

    /// Returns a completion, and what its doorbell is to be told.
    fn wait_for_completion(
        &mut self,
        queue: &mut Queue<D::Memory>,
        limit: Duration,
    ) -> Result<(Completion, u16), Error> {
        /// Looks at memory, each followed by one at the clock and at a register, which is dear.
        const LOOKS: u32 = 1000;
        /// Most time without a look at the controller's state.
        const WAIT: Duration = Duration::from_secs(1);
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(taken) = queue.take() {
                    return Ok(taken);
                }
                std::hint::spin_loop();
            }
            match self.status() {
                GONE => return Err(Error::Gone),
                status if status & FATAL != 0 => return Err(Error::Fatal),
                _ if began.elapsed() > limit => return Err(Error::TimedOut("complete a command")),
                _ if self.interrupts => self.device.wait(limit.min(WAIT)),
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Stops it after an error: it accesses no memory any more.
    fn stop(&mut self) {
        self.is_stopped = true;
        let _ = self.disable();
        let _ = self.device.enable_dma(false);
    }

    /// Has it write its own cache, and stops it (7.6.2).
    fn shut_down(&mut self) -> Result<(), Error> {
        self.configure(CONFIGURATION | ENABLE | SHUT_DOWN);
        self.wait_for_status((SHUTDOWN_STATE, SHUTDOWN_DONE), SHUTDOWN, "shut down")
    }
}

impl<D: Device> Drop for Controller<D> {
    fn drop(&mut self) {
        if !self.is_stopped && self.administration.is_some() {
            // What was flushed is safe in any case.
            let _ = self.shut_down();
        }
        self.stop();
    }
}
