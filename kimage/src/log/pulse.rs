//! Does a kernel that has not panicked still do anything?
//!
//! Two signs, both left by an unmodified kernel in its own memory. Its first core counts the rescheduling
//! interrupts that it has taken (`irq_stat`, shown in /proc/interrupts as `RES`); such an interrupt can be sent to
//! it at any time and does no more than make it look at its run queue. A core that does not count one has its
//! interrupts off. And `system_state` tells of a kernel that was told to halt.
//!
//! Insula's own lightweight kernel tells besides whether its first core is in a program, which is then not to be
//! disturbed: whatever the program does, its kernel does not hang in it.

use super::error::LogError;
use super::kernel::Kernel;
use super::layout::LogLayout;
use super::placement::Placement;
use crate::btf::Btf;
use crate::elf::START_KERNEL_MAP;
use crate::memory::PhysicalMemory;
use crate::symbols::Symbols;
use serde::{Deserialize, Serialize};

/// Vector of the rescheduling interrupt: `RESCHEDULE_VECTOR` of arch/x86/include/asm/irq_vectors.h.
pub const RESCHEDULE_VECTOR: u8 = 0xfd;

/// Where the signs are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Signs {
    /// Link address of `__per_cpu_offset`, whose first word leads to the first core's variables.
    pub(super) per_cpu_offset: u64,
    /// The counter among these, in `irq_stat`: how far behind that word's value, or, from Linux 6.15 on, its link
    /// address, behind which its core's own lies so far.
    pub(super) resched_count: u64,
    /// Link address of `system_state`.
    pub(super) system_state: u64,
    /// `SYSTEM_HALT` of it.
    pub(super) halt: u32,
    /// Link address of a word that is not 0 while the first core executes a program, if the kernel has one.
    #[serde(default)]
    pub(super) in_program: Option<u64>,
}

impl Signs {
    /// `None` when the kernel does not tell: one for a single core has no such interrupt.
    pub(super) fn find(symbols: &Symbols, btf: &Btf) -> Option<Self> {
        let named = btf.offset_of("irq_cpustat_t", "irq_resched_count").ok();
        let count = named.or_else(|| Self::numbered_count(btf))?;
        Some(Self {
            per_cpu_offset: symbols.address("__per_cpu_offset")?,
            resched_count: symbols.address("irq_stat")?.checked_add(count)?,
            system_state: symbols.address("system_state")?,
            halt: btf.enumerator("system_states", "SYSTEM_HALT").ok()?,
            in_program: None,
        })
    }

    /// The counter's offset in `irq_cpustat_t` where that is an array (Linux 7.2 and newer).
    fn numbered_count(btf: &Btf) -> Option<u64> {
        let number = btf.enumerator("irq_stat_counts", "IRQ_COUNT_RESCHEDULE");
        let counts = btf.offset_of("irq_cpustat_t", "counts").ok()?;
        counts.checked_add(4 * u64::from(number.ok()?))
    }
}

/// How many rescheduling interrupts the kernel's first core has taken, a counter that wraps around. `None` when the
/// image does not tell how to know.
///
/// # Errors
/// [`LogError`] when the memory cannot be read, or the kernel has not set up its first core yet.
pub fn pulse<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<Option<u32>, LogError> {
    let Some(signs) = &layout.signs else {
        return Ok(None);
    };
    let kernel = Kernel::at(layout, memory, placement.physical);
    let base = kernel.u64_at(kernel.of_link(signs.per_cpu_offset))?;
    let mut address = base.wrapping_add(signs.resched_count);
    if signs.resched_count >= START_KERNEL_MAP {
        if base == 0 {
            return Err(LogError::Damaged("its first core is not set up yet"));
        }
        address = address.wrapping_add(placement.virtual_offset);
    }
    let count = kernel.of_virtual(address, placement.virtual_offset)?;
    Ok(Some(read_u32(memory, count)?))
}

/// Whether the kernel was told to halt: it is about to, or has. `false` when the image does not tell how to know.
///
/// # Errors
/// [`LogError::Read`] when the memory cannot be read.
pub fn halted<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<bool, LogError> {
    let Some(signs) = &layout.signs else {
        return Ok(false);
    };
    let kernel = Kernel::at(layout, memory, placement.physical);
    Ok(read_u32(memory, kernel.of_link(signs.system_state))? == signs.halt)
}

/// Whether the kernel's first core executes a program just now. `false` when the kernel does not tell.
///
/// # Errors
/// [`LogError::Read`] when the memory cannot be read.
pub fn in_program<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<bool, LogError> {
    let Some(word) = layout.signs.as_ref().and_then(|signs| signs.in_program) else {
        return Ok(false);
    };
    let kernel = Kernel::at(layout, memory, placement.physical);
    Ok(read_u32(memory, kernel.of_link(word))? != 0)
}

fn read_u32<M: PhysicalMemory + ?Sized>(memory: &M, physical: u64) -> Result<u32, LogError> {
    let mut word = [0; 4];
    memory.read(physical, &mut word)?;
    Ok(u32::from_le_bytes(word))
}
