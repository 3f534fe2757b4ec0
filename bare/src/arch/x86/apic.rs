//! The local APIC of the calling core: IPIs, end of interrupt, timer.
//!
//! One interface for both modes: registers in a page of memory (xAPIC), or model-specific registers
//! (x2APIC). INIT does not change a core's mode, so that a kernel finds its cores in the mode in which
//! the base, or an earlier node, has left them. All cores of a kernel are in the same: see
//! [`choose_mode`].

mod mode;
mod registers;

use core::sync::atomic::{AtomicU32, Ordering};

pub use mode::Mode;
use registers::{Register, read, write};

use super::cpu::{self, Msr, write_msr};
use super::paging::{MapError, PageTable};
use crate::memory::FrameAllocator;
#[cfg(feature = "boot-protocol")]
use crate::memory::PhysAddr;

const SOFTWARE_ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const DIVIDE_BY_1: u32 = 0xb;
const ASSERT: u32 = 1 << 14;
const MODE_NMI: u32 = 4 << 8;
const MODE_INIT: u32 = 5 << 8;
#[cfg(feature = "boot-protocol")]
const MODE_STARTUP: u32 = 6 << 8;

/// Vector of spurious interrupts: the interrupt was gone when the core acknowledged it.
pub const SPURIOUS_VECTOR: u8 = 0xff;
/// Vector of the timer interrupt.
pub const TIMER_VECTOR: u8 = 0xfe;

/// Chooses the mode of all cores: that of the calling one, or x2APIC mode if an id needs it. In xAPIC
/// mode it maps the registers.
///
/// # Errors
/// [`MapError`].
pub fn choose_mode(
    max_id: u32,
    kernel: &mut PageTable,
    frames: &mut dyn FrameAllocator,
) -> Result<Mode, MapError> {
    let mode = Mode::of_core().for_ids(max_id);
    if mode == Mode::XApic {
        registers::map(kernel, frames)?;
    }
    mode.choose();
    Ok(mode)
}

/// Chooses x2APIC mode for all cores, whatever mode they are in. Returns whether the processor has
/// it.
pub fn choose_x2apic() -> bool {
    let has_it = Mode::has_x2apic();
    if has_it {
        Mode::X2Apic.choose();
    }
    has_it
}

/// Enables the calling core's APIC in the mode that was chosen, and leaves its registers alone: for a
/// monitor, whose guest sets them up.
pub fn enter_mode() {
    Mode::of_kernel().enter();
}

/// Enables the calling core's APIC in the mode that was chosen, with all local interrupt sources
/// masked: only IPIs arrive.
pub fn enable() {
    Mode::of_kernel().enter();
    for register in [
        Register::Timer,
        Register::Lint0,
        Register::Lint1,
        Register::Error,
    ] {
        write(register, MASKED);
    }
    write(Register::Divide, DIVIDE_BY_1);
    write(
        Register::Spurious,
        SOFTWARE_ENABLE | u32::from(SPURIOUS_VECTOR),
    );
}

/// Returns the id of the calling core's APIC.
#[must_use]
pub fn id() -> u32 {
    registers::id()
}

/// Number of the last entry of the calling core's local vector table.
#[must_use]
pub fn last_local_vector() -> u8 {
    (read(Register::Version) >> 16) as u8
}

/// Signals the end of the interrupt that is being handled.
pub fn end_of_interrupt() {
    write(Register::Eoi, 0);
}

/// Sends an IPI to a core of the node or of the base.
pub fn send_ipi(apic_id: u32, vector: u8) {
    registers::command(apic_id, ASSERT | u32::from(vector));
}

/// Sends a non-maskable interrupt to a core of the node.
pub fn send_nmi(apic_id: u32) {
    registers::command(apic_id, ASSERT | MODE_NMI);
}

/// Resets a core of the node, perhaps the calling one.
pub fn send_init(apic_id: u32) {
    registers::command(apic_id, ASSERT | MODE_INIT);
}

/// Starts a core that was reset at a page below 1 MiB.
#[cfg(feature = "boot-protocol")]
pub(super) fn send_startup(apic_id: u32, page: PhysAddr) {
    registers::command(apic_id, ASSERT | MODE_STARTUP | (page.0 >> 12) as u32);
}

/// Timer ticks per millisecond; 0 if the timer uses the TSC deadline mode.
static TICKS_PER_MS: AtomicU32 = AtomicU32::new(0);
const CALIBRATION_MS: u64 = 2;
/// How often the frequency is measured at most.
const CALIBRATIONS_MAX: u32 = 50;

/// Whether the timer has deadlines.
#[must_use]
pub fn has_deadline() -> bool {
    cpu::cpuid(1, 0).ecx & 1 << 24 != 0
}

/// Measures the frequency of the timer, once, on the first core.
///
/// A virtual core may stand still meanwhile, even for much longer than the measurement takes. So the
/// time that has passed is what counts, and of several measurements the one whose ends are known best.
pub fn calibrate_timer(tsc_khz: u32) {
    if has_deadline() {
        return;
    }
    write(Register::Timer, MASKED);
    let mut best = Calibration::measure(tsc_khz);
    for _ in 1..CALIBRATIONS_MAX {
        if best.is_exact() {
            break;
        }
        best = best.better(Calibration::measure(tsc_khz));
    }
    write(Register::InitialCount, 0);
    TICKS_PER_MS.store(best.ticks_per_ms(tsc_khz), Ordering::Release);
}

/// A measurement of the timer's frequency.
#[derive(Clone, Copy)]
struct Calibration {
    /// Timer ticks.
    ticks: u32,
    /// Time that they took, in ticks of the time stamp counter.
    elapsed: u64,
    /// By how much that may be wrong.
    error: u64,
}

impl Calibration {
    fn measure(tsc_khz: u32) -> Self {
        let before = cpu::time_stamp();
        write(Register::InitialCount, u32::MAX);
        let begin = cpu::time_stamp();
        let end = begin + CALIBRATION_MS * u64::from(tsc_khz);
        while cpu::time_stamp() < end {
            cpu::relax();
        }
        let end = cpu::time_stamp();
        let left = read(Register::CurrentCount);
        let after = cpu::time_stamp();
        Self {
            ticks: u32::MAX - left,
            elapsed: end - begin,
            error: match left {
                // It ended before it was read.
                0 => u64::MAX,
                _ => (begin - before) + (after - end),
            },
        }
    }

    /// Whether it is right within 2 percent.
    fn is_exact(self) -> bool {
        self.error < self.elapsed / 50
    }

    /// Of two measurements the one with the smaller relative error.
    fn better(self, other: Self) -> Self {
        let (own, others) = (
            u128::from(self.error) * u128::from(other.elapsed),
            u128::from(other.error) * u128::from(self.elapsed),
        );
        if own <= others { self } else { other }
    }

    fn ticks_per_ms(self, tsc_khz: u32) -> u32 {
        let ticks = u128::from(self.ticks) * u128::from(tsc_khz) / u128::from(self.elapsed.max(1));
        u32::try_from(ticks).unwrap_or(u32::MAX).max(1)
    }
}

/// Arms the one-shot timer of this core for a time of the time stamp counter.
pub fn set_timer(at: u64, tsc_khz: u32) {
    if has_deadline() {
        write(Register::Timer, 2 << 17 | u32::from(TIMER_VECTOR));
        // The timer takes a deadline only when it is in deadline mode (Intel SDM volume 3, 11.5.4.1).
        registers::fence();
        // SAFETY: CPUID says that the register is there.
        return unsafe { write_msr(Msr::TscDeadline as u32, at.max(1)) };
    }
    let ticks_per_ms = u64::from(TICKS_PER_MS.load(Ordering::Acquire));
    let wait = u128::from(at.saturating_sub(cpu::time_stamp()));
    let count = wait * u128::from(ticks_per_ms) / u128::from(tsc_khz.max(1));
    write(Register::Timer, u32::from(TIMER_VECTOR));
    write(
        Register::InitialCount,
        u32::try_from(count).unwrap_or(u32::MAX).max(1),
    );
}

/// Stops the timer of this core.
pub fn stop_timer() {
    write(Register::Timer, MASKED);
    if !has_deadline() {
        write(Register::InitialCount, 0);
    }
}
