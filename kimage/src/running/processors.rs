//! The processors of a kernel, by its own numbers.

use super::registers::{Registers, nmi_frame};
use super::{RunningError, RunningKernel};
use crate::memory::PhysicalMemory;

/// Limit above that of any kernel (`NR_CPUS`).
const PROCESSORS_MAX: u32 = 8192;
/// Bits in a word of a mask.
const WORD_BITS: u32 = 64;

/// A processor that the kernel has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// Number by the kernel.
    pub number: u32,
    /// Id of its local APIC.
    pub apic_id: u32,
    /// Whether the kernel counts it as online: it handles interrupts, NMIs included.
    pub online: bool,
    /// Offset of its per-CPU variables from their symbols.
    pub(super) percpu: u64,
}

impl<M: PhysicalMemory + ?Sized> RunningKernel<'_, M> {
    /// The processors that have ever been online, in the order of their numbers.
    ///
    /// # Errors
    /// [`RunningError`] when a variable cannot be read.
    pub fn processors(&self) -> Result<Vec<Processor>, RunningError> {
        let count = self.image_half(self.symbol("nr_cpu_ids")?)?;
        let booted = self.symbol("cpus_booted_once_mask")?;
        let online = self.symbol("__cpu_online_mask")?;
        let offsets = self.symbol("__per_cpu_offset")?;
        let mut processors = Vec::new();
        for number in 0..count.min(PROCESSORS_MAX) {
            if !self.in_mask(booted, number)? {
                continue;
            }
            let percpu = self.image_word(offsets + 8 * u64::from(number))?;
            processors.push(Processor {
                number,
                apic_id: self.apic_id(percpu)?,
                online: self.in_mask(online, number)?,
                percpu,
            });
        }
        Ok(processors)
    }

    /// The registers of a processor at its last NMI; `None` if it had none, or they were
    /// overwritten.
    ///
    /// NMIs have their own stack, on which the processor and the kernel's entry code save the
    /// registers. They stay there after the handler has returned, until the next NMI.
    ///
    /// # Errors
    /// [`RunningError`] when that stack is not found.
    pub fn registers_at_nmi(
        &self,
        processor: &Processor,
    ) -> Result<Option<Registers>, RunningError> {
        let stacks = self.symbol("exception_stacks")?;
        let btf = self.btf()?;
        let stack = btf.field("exception_stacks", "NMI_stack")?;
        let end = processor
            .percpu
            .wrapping_add(stacks)
            .wrapping_add((stack.bit_offset + stack.bit_size) / 8);
        let task_stack = self.task_word(processor, "stack")?;
        Ok(nmi_frame(end, task_stack, |address, into| {
            self.read(address, into)
        }))
    }

    /// Id (the kernel's `pid`) of the thread that a processor executes.
    ///
    /// # Errors
    /// [`RunningError`] when a variable cannot be read.
    pub fn current_thread(&self, processor: &Processor) -> Result<u32, RunningError> {
        // The lower half: the member has 32 bits.
        Ok(self.task_word(processor, "pid")? as u32)
    }

    /// Mask of the processors that are to print a backtrace at their next NMI (`backtrace_mask` of
    /// lib/nmi_backtrace.c): physical address of its first word, and number of words.
    ///
    /// # Errors
    /// [`RunningError`] when a variable cannot be read.
    pub fn backtrace_mask(&self) -> Result<(u64, u32), RunningError> {
        let mask = self.physical(self.symbol("backtrace_mask")?)?;
        let count = self.image_half(self.symbol("nr_cpu_ids")?)?;
        Ok((mask, count.min(PROCESSORS_MAX).div_ceil(WORD_BITS)))
    }

    /// Number of the processor that panicked, if one did.
    ///
    /// # Errors
    /// [`RunningError`] when the variable cannot be read.
    pub fn panicked_processor(&self) -> Result<Option<u32>, RunningError> {
        // `PANIC_CPU_INVALID`, -1, for none.
        let number = self.image_half(self.symbol("panic_cpu")?)?;
        Ok(Some(number).filter(|number| number.cast_signed() >= 0))
    }

    /// First 64 bits of a member of the task that a processor executes.
    fn task_word(&self, processor: &Processor, member: &str) -> Result<u64, RunningError> {
        let btf = self.btf()?;
        // Before Linux 6.2, and since 6.15, a variable of its own.
        let variable = match self.symbols().address("current_task") {
            Some(variable) => variable,
            None => self.symbol("pcpu_hot")? + btf.offset_of("pcpu_hot", "current_task")?,
        };
        let task = self.word(processor.percpu.wrapping_add(variable))?;
        self.word(task.wrapping_add(btf.offset_of("task_struct", member)?))
    }

    fn apic_id(&self, percpu: u64) -> Result<u32, RunningError> {
        let btf = self.btf()?;
        // Since Linux 6.7 in a nested structure, and wider.
        let field = btf
            .field("cpuinfo_x86", "topo.apicid")
            .or_else(|_| btf.field("cpuinfo_x86", "apicid"))?;
        let info = percpu.wrapping_add(self.symbol("cpu_info")?);
        let mut id = [0; 4];
        let size = (field.bit_size / 8).min(4) as usize;
        self.read(info.wrapping_add(field.bit_offset / 8), &mut id[..size])?;
        Ok(u32::from_le_bytes(id))
    }

    fn in_mask(&self, mask: u64, number: u32) -> Result<bool, RunningError> {
        let word = self.image_word(mask + 8 * u64::from(number / WORD_BITS))?;
        Ok(word >> (number % WORD_BITS) & 1 != 0)
    }
}
