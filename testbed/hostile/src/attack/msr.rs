//! Model-specific registers.

use insula_bare::cpu::{read_msr, write_msr};

use super::Core;

/// First registers of the ranges that processors have.
const RANGES: [u32; 4] = [0, 0xc000_0000, 0xc001_0000, 0x4000_0000];
/// Registers of each range, of which the permission maps have 8192: some are outside.
const COUNT: u64 = 0x2100;
/// Registers that matter: of the local APIC, virtualization, system management, microcode, memory types,
/// system calls, features, shadow stacks.
const INTERESTING: [u32; 24] = [
    0x1b,
    0x10,
    0x3a,
    0x79,
    0x9b,
    0x9e,
    0x174,
    0x1a0,
    0x1d9,
    0x200,
    0x277,
    0x2ff,
    0x480,
    0x6a2,
    0x6e0,
    0xda0,
    0xc000_0080,
    0xc000_0082,
    0xc000_0103,
    0xc001_0010,
    0xc001_0111,
    0xc001_0114,
    0xc001_0117,
    0xc001_0015,
];

/// Reads any register, or writes one of its own local APIC other than the interrupt command.
pub(super) extern "C" fn pass(core: &mut Core) {
    if core.random.once_in(3) {
        let register = 0x800 + core.random.below(0x40) as u32;
        let value = core.random.word() & 0xff;
        if register != 0x830 {
            // SAFETY: none: this is what the monitor is for.
            unsafe { write_msr(register, value) };
        }
        return;
    }
    let register = any(core);
    // SAFETY: as above.
    let _ = unsafe { read_msr(register) };
}

/// Writes any register.
pub(super) extern "C" fn break_out(core: &mut Core) {
    let register = any(core);
    let value = match core.random.below(4) {
        0 => core.random.word(),
        1 => core.random.word() & 0xffff_f000,
        2 => 1 << core.random.below(64),
        _ => core.random.below(0x10000),
    };
    // SAFETY: none: this is what the monitor is for.
    unsafe { write_msr(register, value) }
}

fn any(core: &mut Core) -> u32 {
    match core.random.below(4) {
        0 => core.random.of(&INTERESTING),
        1 => 0x800 + core.random.below(0x100) as u32,
        2 => core.random.word() as u32,
        _ => core.random.of(&RANGES) + core.random.below(COUNT) as u32,
    }
}
