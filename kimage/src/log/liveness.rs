//! Liveness of a kernel that has not panicked.
//!
//! An unmodified kernel shows it in its own memory by two variables. Its first core counts
//! rescheduling interrupts (`irq_stat`, shown in /proc/interrupts as `RES`); such an interrupt can
//! be sent at any time and only makes the core check its run queue. A core that does not count one
//! has its interrupts disabled. And `system_state` shows that a kernel was halted.
//!
//! Insula's lightweight kernel also shows whether its first core executes a program, which should
//! not be interrupted: whatever the program does, the kernel does not hang in it.

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

/// Addresses of the variables that show liveness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LivenessLayout {
    /// Link address of `__per_cpu_offset`, whose first word is the offset of the first core's
    /// variables.
    pub(super) per_cpu_offset: u64,
    /// The counter in `irq_stat` among these: its offset from that word's value or, since Linux
    /// 6.15, its link address, to which that word is added.
    pub(super) resched_count: u64,
    /// Link address of `system_state`.
    pub(super) system_state: u64,
    /// `SYSTEM_HALT`, a value of it.
    pub(super) halt: u32,
    /// Link address of a word that is nonzero while the first core executes a program, if the
    /// kernel has one.
    #[serde(default)]
    pub(super) in_program: Option<u64>,
}

impl LivenessLayout {
    /// `None` when the kernel lacks a variable: one for a single core has no such interrupt.
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

/// Number of rescheduling interrupts that the kernel's first core has taken; it wraps around.
/// `None` when the layout has no liveness.
///
/// # Errors
/// [`LogError`] when the memory cannot be read, or the first core is not set up yet.
pub fn resched_count<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<Option<u32>, LogError> {
    let Some(liveness) = &layout.liveness else {
        return Ok(None);
    };
    let kernel = Kernel::at(layout, memory, placement.physical);
    let base = kernel.u64_at(kernel.of_link(liveness.per_cpu_offset))?;
    let mut address = base.wrapping_add(liveness.resched_count);
    if liveness.resched_count >= START_KERNEL_MAP {
        if base == 0 {
            return Err(LogError::Damaged("its first core is not set up yet"));
        }
        address = address.wrapping_add(placement.virtual_offset);
    }
    let count = kernel.of_virtual(address, placement.virtual_offset)?;
    Ok(Some(read_u32(memory, count)?))
}

/// Whether the kernel is halting or has halted. `false` when the layout has no liveness.
///
/// # Errors
/// [`LogError::Read`] when the memory cannot be read.
pub fn halted<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<bool, LogError> {
    let Some(liveness) = &layout.liveness else {
        return Ok(false);
    };
    let kernel = Kernel::at(layout, memory, placement.physical);
    Ok(read_u32(memory, kernel.of_link(liveness.system_state))? == liveness.halt)
}

/// Whether the kernel's first core executes a program now. `false` when the kernel does not show
/// it.
///
/// # Errors
/// [`LogError::Read`] when the memory cannot be read.
pub fn in_program<M: PhysicalMemory + ?Sized>(
    layout: &LogLayout,
    placement: Placement,
    memory: &M,
) -> Result<bool, LogError> {
    let Some(word) = layout
        .liveness
        .as_ref()
        .and_then(|liveness| liveness.in_program)
    else {
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
