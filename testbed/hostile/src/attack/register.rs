//! Control registers, descriptor tables, extended state: wild values.

use core::arch::asm;

use insula_bare::cpu::write_msr;

use super::Core;

const EFER: u32 = 0xc000_0080;
const PAT: u32 = 0x277;
const ALIGNED: u64 = !7;

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Changes a bit of a register.
pub(super) extern "C" fn pass(core: &mut Core) {
    let bit = 1 << core.random.below(32);
    change(core, bit);
}

/// Changes all of a register; or loads descriptor tables from anywhere, and uses them.
pub(super) extern "C" fn break_out(core: &mut Core) {
    let bits = core.random.word();
    if core.random.once_in(2) {
        return change(core, bits);
    }
    let pointer = Pointer {
        limit: core.random.word() as u16,
        base: match core.random.once_in(2) {
            true => bits,
            false => insula_bare::memory::DIRECT_MAP + (bits & 0xff_ffff_ffff & ALIGNED),
        },
    };
    // SAFETY: none: this is what the monitor is for.
    unsafe {
        match core.random.below(4) {
            0 => asm!("lgdt [{}]", "mov ss, {:x}", in(reg) &pointer, in(reg) bits & 0xfff8),
            1 => asm!("lidt [{}]", "int3", in(reg) &pointer),
            2 => asm!("lldt {:x}", in(reg) bits),
            _ => asm!("ltr {:x}", in(reg) bits),
        }
    }
}

/// Flips bits of a register.
fn change(core: &mut Core, bits: u64) {
    // SAFETY: as above. An exception puts most of them back.
    unsafe {
        match core.random.below(7) {
            0 => asm!("mov {0}, cr0", "xor {0}, {1}", "mov cr0, {0}", out(reg) _, in(reg) bits),
            // LA57, PCID, SMEP, shadow stacks and all others.
            1 => asm!("mov {0}, cr4", "xor {0}, {1}", "mov cr4, {0}", out(reg) _, in(reg) bits),
            2 => asm!("mov cr8, {}", in(reg) bits & 0xf),
            3 => write_msr(EFER, bits ^ 0x500),
            // Memory types, most of them valid.
            4 => write_msr(PAT, bits & 0x0707_0707_0707_0707),
            5 => {
                asm!("xsetbv", in("ecx") 0, in("eax") bits as u32 | 1, in("edx") (bits >> 32) as u32)
            }
            _ => asm!("mov dr0, {0}", "mov dr6, {0}", "mov dr7, {0}", in(reg) bits),
        }
    }
}
