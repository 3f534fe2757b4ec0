//! The time stamp counter, which the module also uses for the time when a node's core started.

#![allow(unsafe_code, reason = "the counter is read by an instruction")]

/// The time stamp counter now, in ticks of the machine's `tsc_khz`.
#[must_use]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC reads a register, touches no memory, and every x86-64 processor has it; Linux
    // allows it unless disabled by PR_SET_TSC.
    unsafe { core::arch::x86_64::_rdtsc() }
}
