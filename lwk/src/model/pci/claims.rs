//! Who has which function, from a claim to the release.
//!
//! A claim resets the function in steps, between which time passes. A release never waits: it switches DMA
//! off, and leaves what takes time to the next claim.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use insula_abi::pci::{PCI_MAPPINGS_MAX, PCI_MEMORY_MAX};

use crate::hw::pci::CONFIG_SIZE;
use crate::model::errno::Errno;
use crate::model::pci::config::{Bar, Config};
use crate::model::pci::function::Function;
use crate::model::vma::PAGE;

/// Time for a BAR to be unmapped by who had the function before.
const UNMAP_NS: u64 = 5_000_000_000;
/// Time that a function needs to leave a state of low power.
const WAKE_NS: u64 = 10_000_000;
/// Time for a reset, and until it must have come back.
const RESET_NS: u64 = 100_000_000;
const RESET_MAX_NS: u64 = 1_100_000_000;
/// Period in which it is looked whether something has happened.
const PERIOD_NS: u64 = 1_000_000;

/// How far a claim has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Others may have BARs mapped, until this time.
    Mapped(u64),
    /// It leaves a state of low power, until this time.
    Waking(u64),
    /// It is being reset: until the first time at least, the second at most.
    Resetting(u64, u64),
    /// It can be used.
    Ready,
}

/// Result of a step of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The function can be used.
    Now,
    /// There is another step, from this time on, in ns since boot.
    At(u64),
}

/// A function, who has it, and what it may reach. `M` is memory that can be mapped.
#[derive(Debug)]
struct Entry<C, M> {
    function: Function,
    config: C,
    /// Process that has claimed it, and how far that has got.
    owner: Option<(u64, Stage)>,
    /// It may have been told to access memory since its last reset.
    had_dma: bool,
    /// Its configuration space is left alone until then, as it is being reset.
    quiet_until_ns: u64,
    /// Memory that it may access.
    memory: Vec<Arc<M>>,
    memory_bytes: u64,
    /// BARs that may be mapped.
    mapped: Vec<Weak<M>>,
}

/// All functions.
#[derive(Debug)]
pub struct Claims<C, M> {
    entries: Vec<Entry<C, M>>,
}

/// Proof that a process has claimed a function, which is ready.
#[derive(Debug)]
pub struct Grant<'a, C, M>(&'a mut Entry<C, M>);

impl<C: Config, M> Claims<C, M> {
    /// A node without functions.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    /// Adds the function at an address, if there is one.
    pub fn add(&mut self, address: u32, mut config: C) -> Option<&Function> {
        let function = Function::probe(address, &mut config)?;
        self.entries.push(Entry {
            function,
            config,
            owner: None,
            had_dma: false,
            quiet_until_ns: 0,
            memory: Vec::new(),
            memory_bytes: 0,
            mapped: Vec::new(),
        });
        self.entries.last().map(|entry| &entry.function)
    }

    /// Returns all functions, with the processes that have claimed them.
    pub fn all(&self) -> impl Iterator<Item = (&Function, Option<u64>)> {
        let owner = |entry: &Entry<C, M>| entry.owner.map(|(owner, _)| owner);
        self.entries
            .iter()
            .map(move |entry| (&entry.function, owner(entry)))
    }

    fn find(&mut self, address: u64) -> Result<&mut Entry<C, M>, Errno> {
        let is_it = |entry: &&mut Entry<C, M>| u64::from(entry.function.address) == address;
        self.entries.iter_mut().find(is_it).ok_or(Errno::ENODEV)
    }

    /// Begins a claim.
    ///
    /// # Errors
    /// [`Errno::ENODEV`]; [`Errno::EBUSY`] if it is claimed, or has no reset and would need one.
    pub fn begin(&mut self, address: u64, process: u64, now_ns: u64) -> Result<(), Errno> {
        let entry = self.find(address)?;
        if entry.owner.is_some() || entry.had_dma && !entry.function.has_reset() {
            return Err(Errno::EBUSY);
        }
        entry.owner = Some((process, Stage::Mapped(now_ns + UNMAP_NS)));
        Ok(())
    }

    /// Makes the next step of a claim. If that fails the function is released.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if BARs are still mapped; [`Errno::EIO`] if it does not come back from its
    /// reset; [`Errno::EACCES`] if the process has not claimed it, or no more.
    pub fn step(&mut self, address: u64, process: u64, now_ns: u64) -> Result<Ready, Errno> {
        let entry = self.find(address)?;
        let (_, stage) = entry
            .owner
            .filter(|(owner, _)| *owner == process)
            .ok_or(Errno::EACCES)?;
        match entry.step(stage, now_ns) {
            Ok((next, ready)) => {
                entry.owner = Some((process, next));
                Ok(ready)
            }
            Err(error) => {
                entry.owner = None;
                Err(error)
            }
        }
    }

    /// Returns a function that a process has claimed.
    ///
    /// # Errors
    /// [`Errno::ENODEV`], [`Errno::EACCES`].
    pub fn granted(&mut self, address: u64, process: u64) -> Result<Grant<'_, C, M>, Errno> {
        let entry = self.find(address)?;
        match entry.owner {
            Some((owner, Stage::Ready)) if owner == process => Ok(Grant(entry)),
            _ => Err(Errno::EACCES),
        }
    }

    /// Releases a function. Returns memory that it does not access any more.
    ///
    /// # Errors
    /// [`Errno::ENODEV`], [`Errno::EACCES`].
    pub fn release(&mut self, address: u64, process: u64) -> Result<Vec<Arc<M>>, Errno> {
        let entry = self.find(address)?;
        match entry.owner {
            Some((owner, _)) if owner == process => Ok(entry.release()),
            _ => Err(Errno::EACCES),
        }
    }

    /// Releases all functions of a process. Returns memory that they do not access any more.
    pub fn release_all(&mut self, process: u64) -> Vec<Arc<M>> {
        let is_its =
            |entry: &&mut Entry<C, M>| entry.owner.is_some_and(|(owner, _)| owner == process);
        let its = self.entries.iter_mut().filter(is_its);
        its.flat_map(Entry::release).collect()
    }

    /// Whether a process has claimed any function.
    #[must_use]
    pub fn has_any(&self, process: u64) -> bool {
        self.all().any(|(_, owner)| owner == Some(process))
    }
}

impl<C: Config, M> Default for Claims<C, M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Config, M> Entry<C, M> {
    fn step(&mut self, stage: Stage, now_ns: u64) -> Result<(Stage, Ready), Errno> {
        match stage {
            Stage::Ready => Ok((stage, Ready::Now)),
            Stage::Waking(at_ns) if now_ns < at_ns => Ok((stage, Ready::At(at_ns))),
            Stage::Resetting(at_ns, _) if now_ns < at_ns => Ok((stage, Ready::At(at_ns))),
            Stage::Mapped(end_ns) if self.is_mapped() => match now_ns < end_ns {
                true => Ok((stage, Ready::At(now_ns + PERIOD_NS))),
                false => Err(Errno::EBUSY),
            },
            Stage::Mapped(_) if now_ns < self.quiet_until_ns => {
                Ok((stage, Ready::At(self.quiet_until_ns)))
            }
            Stage::Mapped(_) => {
                let is_woken = self.function.wake(&mut self.config);
                let at_ns = now_ns + if is_woken { WAKE_NS } else { 0 };
                Ok((Stage::Waking(at_ns), Ready::At(at_ns)))
            }
            Stage::Waking(_) => Ok(self.begin_reset(now_ns)),
            Stage::Resetting(..) if self.function.is_there(&self.config) => Ok(self.finish()),
            Stage::Resetting(_, end_ns) if now_ns < end_ns => {
                Ok((stage, Ready::At(now_ns + PERIOD_NS)))
            }
            Stage::Resetting(..) => Err(Errno::EIO),
        }
    }

    /// Whether anybody still has a BAR mapped.
    fn is_mapped(&mut self) -> bool {
        self.mapped.retain(|mapped| mapped.strong_count() > 0);
        !self.mapped.is_empty()
    }

    fn begin_reset(&mut self, now_ns: u64) -> (Stage, Ready) {
        self.function.quiesce(&mut self.config);
        if !self.function.begin_reset(&mut self.config) {
            return self.finish();
        }
        let at_ns = now_ns + RESET_NS;
        self.quiet_until_ns = at_ns;
        let stage = Stage::Resetting(at_ns, now_ns + RESET_MAX_NS);
        (stage, Ready::At(at_ns))
    }

    fn finish(&mut self) -> (Stage, Ready) {
        self.function.restore(&mut self.config);
        self.had_dma = false;
        self.memory.clear();
        self.memory_bytes = 0;
        (Stage::Ready, Ready::Now)
    }

    /// Memory is kept until the next reset if the device has not finished with it: it should have.
    fn release(&mut self) -> Vec<Arc<M>> {
        // While it is being reset it is left alone: DMA is off since before.
        let is_resetting = matches!(self.owner, Some((_, Stage::Resetting(..))));
        self.owner = None;
        match is_resetting || self.function.quiesce(&mut self.config) {
            true => {
                self.memory_bytes = 0;
                core::mem::take(&mut self.memory)
            }
            false => Vec::new(),
        }
    }
}

impl<C: Config, M> Grant<'_, C, M> {
    /// Switches decoding and DMA on or off, by flags of `insula_pci.h`.
    pub fn enable(&mut self, flags: u64) {
        self.0.had_dma |= flags & insula_abi::pci::PCI_DMA != 0;
        self.0.function.enable(&mut self.0.config, flags);
    }

    /// Reads 1, 2 or 4 bytes of configuration space.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn read(&self, offset: u64, size: u64) -> Result<u64, Errno> {
        let is_valid = matches!(size, 1 | 2 | 4) && offset.is_multiple_of(size);
        if !is_valid || offset >= u64::from(CONFIG_SIZE) {
            return Err(Errno::EINVAL);
        }
        let word = u64::from(self.0.config.read(offset as u16 & !3));
        Ok(word >> (8 * (offset & 3)) & ((1 << (8 * size)) - 1))
    }

    /// Has the function interrupt by messages. Returns the physical address of a message's entry in their
    /// table, which is masked after a reset.
    ///
    /// # Errors
    /// [`Errno::EOPNOTSUPP`] if it has none; [`Errno::EINVAL`] if it has no such message, or does not decode.
    pub fn message(&mut self, message: u64) -> Result<u64, Errno> {
        let Entry {
            function, config, ..
        } = &mut *self.0;
        let messages = function.messages().ok_or(Errno::EOPNOTSUPP)?;
        let entry = messages.entry(message)?;
        if !function.is_decoding(config) {
            return Err(Errno::EINVAL);
        }
        messages.set_enabled(config, true);
        Ok(entry)
    }

    /// Notes that a part of a BAR is mapped. `map` makes what is mapped, of a physical address and a size.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is no such part, of whole pages; [`Errno::ENOMEM`].
    pub fn map(
        &mut self,
        bar: u64,
        (offset, size): (u64, u64),
        map: impl FnOnce(u64, u64) -> Arc<M>,
    ) -> Result<Arc<M>, Errno> {
        let bar = usize::try_from(bar).ok();
        let bar = bar.and_then(|bar| self.0.function.bars.get(bar));
        let start = part_of(bar.ok_or(Errno::EINVAL)?, offset, size).ok_or(Errno::EINVAL)?;
        self.0.is_mapped();
        if self.0.mapped.len() >= PCI_MAPPINGS_MAX {
            return Err(Errno::ENOMEM);
        }
        let mapped = map(start, size);
        self.0.mapped.push(Arc::downgrade(&mapped));
        Ok(mapped)
    }

    /// Keeps memory for the device until it is released.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`] if it has too much.
    pub fn keep(&mut self, memory: &Arc<M>, bytes: u64) -> Result<(), Errno> {
        let total = self.0.memory_bytes.saturating_add(bytes);
        if total > PCI_MEMORY_MAX || self.0.memory.len() >= PCI_MAPPINGS_MAX {
            return Err(Errno::ENOMEM);
        }
        self.0.memory_bytes = total;
        self.0.memory.push(Arc::clone(memory));
        Ok(())
    }
}

/// Returns the physical address of a part of a BAR, of whole pages.
fn part_of(bar: &Bar, offset: u64, size: u64) -> Option<u64> {
    let end = offset.checked_add(size)?;
    // A small BAR has a page, in which nothing else is as a rule: nobody else has the bus.
    let bar_end = bar.size.next_multiple_of(PAGE);
    let start = bar.start.checked_add(offset)?;
    let is_whole = start.is_multiple_of(PAGE) && size.is_multiple_of(PAGE);
    (bar.size > 0 && size > 0 && is_whole && end <= bar_end).then_some(start)
}
