//! Interrupts to cores: every mode, vector and destination.

use core::arch::asm;

use insula_bare::cpu::write_msr;

use super::Core;

/// Interrupt command register in x2APIC mode.
const COMMAND: u32 = 0x830;
const FIXED: u64 = 0;
const SYSTEM_MANAGEMENT: u64 = 2;
const NMI: u64 = 4;
const INIT: u64 = 5;
const STARTUP: u64 = 6;
const LOGICAL: u64 = 1 << 11;
const ASSERT: u64 = 1 << 14;
const SELF: u64 = 1;

/// Interrupts its own cores, or asks for an interrupt of a foreign one, which is dropped.
pub(super) extern "C" fn pass(core: &mut Core) {
    let vector = core.random.below(256);
    let command = match core.random.below(6) {
        0 => to(core.own_core(), FIXED, vector),
        1 => to(core.foreign_core(), FIXED, vector),
        2 => shorthand(SELF, FIXED, vector),
        3 => to(core.own_core(), NMI, vector),
        4 => logical(core.own_core(), FIXED, vector),
        // A level that is not asserted does nothing.
        _ => to(core.foreign_core(), INIT, vector) & !ASSERT,
    };
    send(command);
    // SAFETY: interrupts go to the handler, which is installed.
    unsafe { asm!("sti", "nop", "nop", "cli") }
}

/// Sends anything to anybody.
pub(super) extern "C" fn break_out(core: &mut Core) {
    let vector = core.random.below(256);
    let mode = core
        .random
        .of(&[SYSTEM_MANAGEMENT, NMI, INIT, STARTUP, 3, 7]);
    let command = match core.random.below(6) {
        0 => to(core.foreign_core(), mode, vector),
        1 => logical(core.foreign_core(), mode, vector),
        // All of them, with or without the sender.
        2 => shorthand(2 + core.random.below(2), mode, vector),
        3 => to(u64::from(u32::MAX), mode, vector),
        4 => to(core.random.below(8), mode, vector),
        _ => core.random.word(),
    };
    send(command);
}

fn to(id: u64, mode: u64, vector: u64) -> u64 {
    id << 32 | ASSERT | mode << 8 | vector
}

fn logical(id: u64, mode: u64, vector: u64) -> u64 {
    let logical = id >> 4 << 16 | 1 << (id & 15);
    to(logical, mode, vector) | LOGICAL
}

fn shorthand(which: u64, mode: u64, vector: u64) -> u64 {
    which << 18 | ASSERT | mode << 8 | vector
}

fn send(command: u64) {
    // SAFETY: none: this is what the monitor is for.
    unsafe { write_msr(COMMAND, command) }
}
