//! Code that another core changes while this one executes it: what the monitor finds at the instruction
//! that exited need not be what has exited.

use core::sync::atomic::{AtomicU64, Ordering};

use super::Core;
use crate::orders::{ORDERS, word};

/// Instructions of two bytes that exit or may exit, followed by RET: WRMSR, RDMSR, CPUID, UD2, OUT, IN,
/// RSM, RDTSC.
const BENIGN: [u16; 4] = [0x300f, 0x320f, 0xa20f, 0x0b0f];
const WILD: [u16; 8] = [
    0x300f, 0x320f, 0xa20f, 0x0b0f, 0x90ee, 0x90ec, 0xaa0f, 0x310f,
];
const RETURN: u64 = 0xc3c3_c3c3_c3c3_0000;
const ROUNDS: u64 = 64;

/// The code that both cores change and execute. It is in data, which is executable here.
static CODE: AtomicU64 = AtomicU64::new(RETURN | 0xa20f);

/// Changes it among instructions that a node may execute.
pub(super) extern "C" fn pass(core: &mut Core) {
    race(core, &BENIGN, 0x83f);
}

/// Changes it among any; the register may be the interrupt command.
pub(super) extern "C" fn break_out(core: &mut Core) {
    race(core, &WILD, 0x830);
}

fn race(core: &mut Core, codes: &[u16], register: u64) {
    for _ in 0..ROUNDS {
        let code = RETURN | u64::from(core.random.of(codes));
        CODE.store(code, Ordering::Relaxed);
        let id = match core.random.once_in(2) {
            true => word(&ORDERS.own_cores[0]),
            false => core.foreign_core(),
        };
        execute(register, 0x4040 + core.random.below(128), id);
    }
}

/// Calls the code with registers that WRMSR takes, and OUT.
fn execute(register: u64, low: u64, high: u64) {
    // SAFETY: none: whatever it executes is what the monitor is for.
    unsafe {
        core::arch::asm!(
            "push rbx",
            "call {}",
            "pop rbx",
            in(reg) CODE.as_ptr(),
            inout("rcx") register => _,
            inout("rax") low => _,
            inout("rdx") high => _,
        );
    }
}
