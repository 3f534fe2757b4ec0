//! The local APIC of the calling core: IPIs, end of interrupt, timer.
//!
//! One interface for both modes: registers in a page of memory (xAPIC), or model-specific registers
//! (x2APIC). A core is in xAPIC mode after INIT. It is switched to x2APIC mode only if an APIC id
//! of the node does not fit into eight bits.

use core::ptr;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::cpu::{self, Msr, read_msr, write_msr};
use super::paging::{Flags, MapError, Page, PageSize, PageTable};
use crate::memory::{FrameAllocator, PhysAddr};

/// Virtual address of the registers: in the last GiB, which nothing else uses.
const WINDOW: u64 = 0xffff_ffff_c000_0000;
const REGISTERS: PhysAddr = PhysAddr(0xfee0_0000);

const X2APIC_MODE: u64 = 1 << 10;
const GLOBAL_ENABLE: u64 = 1 << 11;

/// Register numbers in x2APIC mode; in memory each takes 16 bytes.
const ID: u32 = 0x2;
const EOI: u32 = 0xb;
const SPURIOUS: u32 = 0xf;
const COMMAND: u32 = 0x30;
const COMMAND_HIGH: u32 = 0x31;
const TIMER: u32 = 0x32;
const LINT0: u32 = 0x35;
const LINT1: u32 = 0x36;
const ERROR: u32 = 0x37;
const INITIAL_COUNT: u32 = 0x38;
const CURRENT_COUNT: u32 = 0x39;
const DIVIDE: u32 = 0x3e;

const SOFTWARE_ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const DIVIDE_BY_1: u32 = 0xb;
/// Command register: delivery of the last IPI is still pending (xAPIC only).
const DELIVERY_PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const MODE_NMI: u32 = 4 << 8;
#[cfg(feature = "boot-protocol")]
const MODE_INIT: u32 = 5 << 8;
#[cfg(feature = "boot-protocol")]
const MODE_STARTUP: u32 = 6 << 8;

/// Vector of spurious interrupts: the interrupt was gone when the core acknowledged it.
pub const SPURIOUS_VECTOR: u8 = 0xff;
/// Vector of the timer interrupt.
pub const TIMER_VECTOR: u8 = 0xfe;

const UNKNOWN: u8 = 0;
const XAPIC: u8 = 1;
const X2APIC: u8 = 2;
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Chooses the mode for all cores, and maps the registers for xAPIC mode.
///
/// # Errors
/// [`MapError`].
pub fn choose_mode(
    max_id: u32,
    kernel: &mut PageTable,
    frames: &mut dyn FrameAllocator,
) -> Result<(), MapError> {
    // SAFETY: every x86-64 processor has the register.
    let is_x2 = unsafe { read_msr(Msr::ApicBase as u32) } & X2APIC_MODE != 0;
    let mode = if is_x2 || max_id > 254 { X2APIC } else { XAPIC };
    let page = Page {
        start: WINDOW,
        frame: REGISTERS,
        size: PageSize::Small,
        flags: Flags::WRITABLE | Flags::UNCACHED | Flags::NO_EXECUTE,
    };
    kernel.map(page, frames)?;
    MODE.store(mode, Ordering::Release);
    Ok(())
}

fn is_x2apic() -> bool {
    MODE.load(Ordering::Relaxed) == X2APIC
}

fn read(register: u32) -> u32 {
    if is_x2apic() {
        // SAFETY: the registers named here exist in x2APIC mode.
        return unsafe { read_msr(Msr::X2Apic as u32 + register) } as u32;
    }
    let at = (WINDOW + 16 * u64::from(register)) as usize;
    // SAFETY: `choose_mode` has mapped the page, which is the core's own APIC.
    unsafe { ptr::read_volatile(ptr::with_exposed_provenance::<u32>(at)) }
}

fn write(register: u32, value: u32) {
    if is_x2apic() {
        // SAFETY: as above; no value here changes memory that Rust knows.
        return unsafe { write_msr(Msr::X2Apic as u32 + register, u64::from(value)) };
    }
    let at = (WINDOW + 16 * u64::from(register)) as usize;
    // SAFETY: as above.
    unsafe { ptr::write_volatile(ptr::with_exposed_provenance_mut::<u32>(at), value) }
}

/// Whether the processor has x2APIC mode.
#[must_use]
pub fn has_x2apic() -> bool {
    cpu::cpuid(1, 0).ecx & 1 << 21 != 0
}

/// Switches the calling core's APIC to x2APIC mode, for a kernel that uses no other. INIT does not lead
/// back: whoever has the core next does.
pub fn enter_x2apic() {
    MODE.store(X2APIC, Ordering::Release);
    // SAFETY: the processor has the mode, by the caller's check; from xAPIC mode, in which a core is
    // after INIT, one write leads there (Intel SDM volume 3, 11.12.5).
    unsafe {
        let base = read_msr(Msr::ApicBase as u32);
        write_msr(Msr::ApicBase as u32, base | GLOBAL_ENABLE | X2APIC_MODE);
    }
}

/// Enables the calling core's APIC, with all local interrupt sources masked: only IPIs arrive.
pub fn enable() {
    // SAFETY: x2APIC mode is entered only where `choose_mode` found that it is needed or in use.
    unsafe {
        let base = read_msr(Msr::ApicBase as u32) | GLOBAL_ENABLE;
        let mode = if is_x2apic() { X2APIC_MODE } else { 0 };
        write_msr(Msr::ApicBase as u32, base | mode);
    }
    for register in [TIMER, LINT0, LINT1, ERROR] {
        write(register, MASKED);
    }
    write(DIVIDE, DIVIDE_BY_1);
    write(SPURIOUS, SOFTWARE_ENABLE | u32::from(SPURIOUS_VECTOR));
}

/// Returns the id of the calling core's APIC.
#[must_use]
pub fn id() -> u32 {
    match is_x2apic() {
        true => read(ID),
        false => read(ID) >> 24,
    }
}

/// Signals the end of the interrupt that is being handled.
pub fn end_of_interrupt() {
    write(EOI, 0);
}

fn send(apic_id: u32, command: u32) {
    if is_x2apic() {
        // SAFETY: as in `write`. The fences make earlier stores visible to the core that is
        // interrupted.
        unsafe {
            core::arch::asm!("mfence", "lfence", options(nostack, preserves_flags));
            let value = u64::from(apic_id) << 32 | u64::from(command);
            write_msr(Msr::X2Apic as u32 + COMMAND, value);
        }
        return;
    }
    write(COMMAND_HIGH, apic_id << 24);
    write(COMMAND, command);
    while read(COMMAND) & DELIVERY_PENDING != 0 {
        cpu::relax();
    }
}

/// Sends an IPI to a core of the node or of the base.
pub fn send_ipi(apic_id: u32, vector: u8) {
    send(apic_id, ASSERT | u32::from(vector));
}

/// Sends a non-maskable interrupt to a core of the node.
pub fn send_nmi(apic_id: u32) {
    send(apic_id, ASSERT | MODE_NMI);
}

/// Resets a core of the node.
#[cfg(feature = "boot-protocol")]
pub(super) fn send_init(apic_id: u32) {
    send(apic_id, ASSERT | MODE_INIT);
}

/// Starts a core that was reset at a page below 1 MiB.
#[cfg(feature = "boot-protocol")]
pub(super) fn send_startup(apic_id: u32, page: PhysAddr) {
    send(apic_id, ASSERT | MODE_STARTUP | (page.0 >> 12) as u32);
}

/// Timer ticks per millisecond; 0 if the timer uses the TSC deadline mode.
static TICKS_PER_MS: AtomicU32 = AtomicU32::new(0);
const CALIBRATION_MS: u64 = 2;

fn has_deadline() -> bool {
    cpu::cpuid(1, 0).ecx & 1 << 24 != 0
}

/// Measures the frequency of the timer, once, on the first core.
pub fn calibrate_timer(tsc_khz: u32) {
    if has_deadline() {
        return;
    }
    write(TIMER, MASKED);
    write(INITIAL_COUNT, u32::MAX);
    let end = cpu::time_stamp() + CALIBRATION_MS * u64::from(tsc_khz);
    while cpu::time_stamp() < end {
        cpu::relax();
    }
    let ticks = u32::MAX - read(CURRENT_COUNT);
    write(INITIAL_COUNT, 0);
    TICKS_PER_MS.store((ticks / CALIBRATION_MS as u32).max(1), Ordering::Release);
}

/// Arms the one-shot timer of this core for a time of the time stamp counter.
pub fn set_timer(at: u64, tsc_khz: u32) {
    if has_deadline() {
        write(TIMER, 2 << 17 | u32::from(TIMER_VECTOR));
        // SAFETY: CPUID says that the register is there.
        return unsafe { write_msr(Msr::TscDeadline as u32, at.max(1)) };
    }
    let ticks_per_ms = u64::from(TICKS_PER_MS.load(Ordering::Acquire));
    let wait = u128::from(at.saturating_sub(cpu::time_stamp()));
    let count = wait * u128::from(ticks_per_ms) / u128::from(tsc_khz.max(1));
    write(TIMER, u32::from(TIMER_VECTOR));
    write(
        INITIAL_COUNT,
        u32::try_from(count).unwrap_or(u32::MAX).max(1),
    );
}

/// Stops the timer of this core.
pub fn stop_timer() {
    write(TIMER, MASKED);
    if !has_deadline() {
        write(INITIAL_COUNT, 0);
    }
}
