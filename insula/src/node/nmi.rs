//! Interrupting a node's cores by an NMI, which reaches a core whatever it does.
//!
//! An NMI that nobody expects makes Linux grumble and go on. But its own backtraces are made by NMI
//! too: a core that finds itself in the kernel's `backtrace_mask` prints where it is, takes itself
//! out of the mask, and goes on with what it did (lib/nmi_backtrace.c, arch/x86/kernel/apic/hw_nmi.c).
//! So we write that mask from outside, and send the NMI. In passing, the registers stay on the
//! core's NMI stack.
//!
//! Only cores that the kernel counts as online are interrupted: before that a core has no handler,
//! and an exception that cannot be handled resets the machine.

use std::thread::sleep;
use std::time::{Duration, Instant};

use insula_abi as abi;
use kimage::log::Placement;
use kimage::running::{Processor, RunningError, RunningKernel};

use super::{Handle, NodeLog};
use crate::driver::{CallError, Mapping, OutOfRange};

/// How long the kernel itself waits for its cores' backtraces.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a core that has panicked may take to an NMI.
const PANICKED_PATIENCE: Duration = Duration::from_millis(500);
/// How often we look.
const INTERVAL: Duration = Duration::from_millis(2);

/// Why cores were not interrupted.
#[derive(Debug, thiserror::Error)]
pub enum NmiError {
    /// The kernel does not tell what is needed.
    #[error(transparent)]
    Kernel(#[from] RunningError),
    /// What it tells does not lie in its memory.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// The module refused.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The cores that were interrupted, by the numbers of the node's kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interrupted {
    /// Those that have printed where they are.
    pub answered: Vec<u32>,
    /// Those that have not.
    pub silent: Vec<u32>,
}

/// What must be known to write the kernel's mask.
#[derive(Clone, Debug)]
pub(crate) struct BacktraceMask {
    /// Physical address of its first word.
    address: u64,
    processors: Vec<Processor>,
}

impl BacktraceMask {
    /// Learns it from the kernel.
    pub(crate) fn of(kernel: &RunningKernel<'_, Mapping>) -> Result<Self, RunningError> {
        let (address, words) = kernel.backtrace_mask()?;
        let mut processors = kernel.processors()?;
        processors.retain(|processor| processor.online && processor.number / 64 < words);
        Ok(Self {
            address,
            processors,
        })
    }

    /// Makes each core of a node that runs print where it is, and waits until all have.
    pub(crate) fn interrupt(
        &self,
        handle: &Handle,
        memory: &mut Mapping,
    ) -> Result<Interrupted, NmiError> {
        let numbers = || self.processors.iter().map(|processor| processor.number);
        for number in numbers() {
            self.change(memory, number, |word, bit| word | bit)?;
        }
        let sent = self
            .processors
            .iter()
            .try_for_each(|processor| send(handle, processor));
        let began = Instant::now();
        while sent.is_ok() && !self.silent(memory)?.is_empty() && began.elapsed() < PATIENCE {
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

    /// Those that are still in the mask.
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

    /// Where the word with a core's bit lies, the word, and the bit.
    fn word(&self, memory: &Mapping, number: u32) -> Result<(u64, u64, u64), OutOfRange> {
        let offset = memory.offset_of(self.address + 8 * u64::from(number / 64), 8)?;
        let mut word = [0; 8];
        memory.read(offset, &mut word)?;
        Ok((offset, u64::from_le_bytes(word), 1 << (number % 64)))
    }
}

/// Makes the core that has panicked leave its registers in memory, before it is stopped. The others
/// have done so on being stopped by that one (`crash_kexec_post_notifiers`), and the one that
/// panicked is prepared for a stray NMI: nothing is logged.
pub(super) fn leave_registers(handle: &Handle, log: &NodeLog, placement: Placement) {
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
        while kernel.registers_at_nmi(panicked)? == before && began.elapsed() < PANICKED_PATIENCE {
            sleep(INTERVAL);
        }
        Ok::<_, NmiError>(())
    };
    // Without them a dump says that it has none.
    let _ = attempt();
}

/// Sends an NMI to a core; none if it is not among the node's.
fn send(handle: &Handle, processor: &Processor) -> Result<(), CallError> {
    let mut cpus = handle.cpus.iter();
    match cpus.position(|cpu| cpu.apic_id == processor.apic_id) {
        Some(index) => handle.node.interrupt(index as u32, abi::VECTOR_NMI),
        None => Ok(()),
    }
}
