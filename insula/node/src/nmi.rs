//! Sending NMIs to a node's cores, which reach a core whatever it does.
//!
//! Linux only logs an unexpected NMI. But its own backtraces use NMIs: a core that is in the
//! kernel's `backtrace_mask` logs its backtrace, clears its bit and goes on (lib/nmi_backtrace.c,
//! arch/x86/kernel/apic/hw_nmi.c). So that mask is written from outside before the NMI is sent. As
//! a side effect the registers are saved on the core's NMI stack.
//!
//! Only cores that the kernel has online get an NMI: before that a core has no handler, and an
//! unhandled exception resets the machine.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi as abi;
use insula_base::error::Source;
use insula_driver::{CallError, Mapping, OutOfRange};
use kimage::log::Placement;
use kimage::running::{Processor, RunningError, RunningKernel};

use super::{Handle, NodeLog};

/// Timeout of backtraces, the same as the kernel's own.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time a panicked core gets to handle an NMI.
const PANICKED_TIMEOUT: Duration = Duration::from_millis(500);
/// Poll interval.
const INTERVAL: Duration = Duration::from_millis(2);

/// The cores that got an NMI, by the node's CPU numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupted {
    /// Cores that have logged a backtrace.
    pub answered: Vec<u32>,
    /// Cores that have not.
    pub silent: Vec<u32>,
}

/// The kernel's backtrace mask.
#[derive(Clone, Debug)]
pub struct BacktraceMask {
    /// Physical address of the first word.
    address: u64,
    processors: Vec<Processor>,
}

impl BacktraceMask {
    /// Finds it in the kernel.
    ///
    /// # Errors
    /// If the kernel lacks it.
    pub fn of(kernel: &RunningKernel<'_, Mapping>) -> Result<Self, RunningError> {
        let (address, words) = kernel.backtrace_mask()?;
        let mut processors = kernel.processors()?;
        processors.retain(|processor| processor.online && processor.number / 64 < words);
        Ok(Self {
            address,
            processors,
        })
    }

    /// Has each core of a running node log a backtrace, and waits for them.
    ///
    /// # Errors
    /// The kernel lacks needed symbols or types, its mask is outside of the node's memory, or the
    /// module refuses.
    pub fn interrupt(&self, handle: &Handle) -> Result<Interrupted, Source> {
        let memory = &mut handle.node.memory()?.map()?;
        let numbers = || self.processors.iter().map(|processor| processor.number);
        for number in numbers() {
            self.change(memory, number, |word, bit| word | bit)?;
        }
        let sent = self
            .processors
            .iter()
            .try_for_each(|processor| send(handle, processor));
        let began = Instant::now();
        while sent.is_ok() && !self.silent(memory)?.is_empty() && began.elapsed() < TIMEOUT {
            sleep(INTERVAL);
        }
        let silent = self.silent(memory)?;
        for &number in &silent {
            self.change(memory, number, |word, bit| word & !bit)?;
        }
        sent?;
        Ok(Interrupted {
            answered: numbers()
                .filter(|number| !silent.contains(number))
                .collect(),
            silent,
        })
    }

    /// Cores whose bit is still set.
    fn silent(&self, memory: &Mapping) -> Result<Vec<u32>, OutOfRange> {
        let mut silent = Vec::new();
        for processor in &self.processors {
            let (_, word, bit) = self.word(memory, processor.number)?;
            if word & bit != 0 {
                silent.push(processor.number);
            }
        }
        Ok(silent)
    }

    fn change(
        &self,
        memory: &mut Mapping,
        number: u32,
        to: impl Fn(u64, u64) -> u64,
    ) -> Result<(), OutOfRange> {
        let (offset, word, bit) = self.word(memory, number)?;
        memory.write(offset, &to(word, bit).to_le_bytes())
    }

    /// Offset of the word with a core's bit, the word, and the bit.
    fn word(&self, memory: &Mapping, number: u32) -> Result<(u64, u64, u64), OutOfRange> {
        let offset = memory.offset_of(self.address + 8 * u64::from(number / 64), 8)?;
        let mut word = [0; 8];
        memory.read(offset, &mut word)?;
        Ok((offset, u64::from_le_bytes(word), 1 << (number % 64)))
    }
}

/// Has the panicked core save its registers before it is stopped. The others did so when it stopped
/// them (`crash_kexec_post_notifiers`); a panicked core ignores a stray NMI, so nothing is logged.
pub(super) fn save_registers(handle: &Handle, log: &NodeLog, placement: Placement) {
    let attempt = || {
        let kernel = log.kernel(placement)?;
        let Some(number) = kernel.panicked_processor()? else {
            return Ok(());
        };
        let processors = kernel.processors()?;
        let panicked = processors
            .iter()
            .find(|one| one.number == number && one.online);
        let Some(panicked) = panicked else {
            return Ok(());
        };
        let before = kernel.registers_at_nmi(panicked)?;
        send(handle, panicked)?;
        let began = Instant::now();
        while kernel.registers_at_nmi(panicked)? == before && began.elapsed() < PANICKED_TIMEOUT {
            sleep(INTERVAL);
        }
        Ok::<_, Source>(())
    };
    // On failure a dump has no registers.
    let _ = attempt();
}

/// Sends an NMI to a core of the node.
fn send(handle: &Handle, processor: &Processor) -> Result<(), CallError> {
    let known = handle.known_apic_ids();
    match known.iter().position(|&id| id == processor.apic_id) {
        Some(index) => handle.node.interrupt(index as u32, abi::VECTOR_NMI),
        None => Ok(()),
    }
}
