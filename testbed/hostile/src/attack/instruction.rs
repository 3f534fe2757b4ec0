//! Instructions: those of virtualization, and those that raise exceptions.

use core::arch::asm;

use insula_bare::PhysAddr;

use super::Core;

/// Raises an exception; or executes what the monitor answers.
pub(super) extern "C" fn pass(core: &mut Core) {
    let number = core.random.word();
    // SAFETY: each is given up by its exception, or changes registers that are named.
    unsafe {
        match core.random.below(12) {
            0 => asm!("ud2"),
            1 => asm!("int3"),
            // Opcode of ICEBP.
            2 => asm!(".byte 0xf1"),
            3 => asm!("div {}", in(reg) 0_u64, inout("rax") number => _, inout("rdx") 0_u64 => _),
            // Single steps.
            4 => asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq", "nop", "nop"),
            5 => asm!("mov {}, [{}]", out(reg) _, in(reg) number | 1 << 62),
            6 => asm!("int 0x80"),
            7 => asm!("cpuid", "mov {}, rcx", out(reg) _, inout("eax") number as u32 => _,
                      inout("ecx") 0 => _, out("edx") _, options(nostack)),
            // CPUID with prefixes that do nothing.
            8 => asm!(".byte 0x66, 0xf2, 0x0f, 0xa2", inout("eax") 1 => _, inout("ecx") 0 => _,
                      out("edx") _),
            9 => asm!("wbinvd"),
            10 => data_breakpoint(core),
            _ => asm!("invlpg [{}]", in(reg) number),
        }
    }
}

/// A data breakpoint, and a write there. (On the stack of exceptions it would be raised while it is
/// delivered, again and again: that aborts QEMU, see docs/src/facts.md.)
unsafe fn data_breakpoint(core: &mut Core) {
    // Write, 8 bytes, breakpoint 0.
    const ENABLE: u64 = 1 | 1 << 16 | 2 << 18;
    let word = PhysAddr(core.arena).in_direct_map() as u64;
    // SAFETY: it is in the arena; the exception puts the register back.
    unsafe {
        asm!("mov dr0, {0}", "mov dr7, {1}", "mov [{0}], {1}", in(reg) word, in(reg) ENABLE);
    }
}

/// An instruction of virtualization, or one that concerns all cores.
pub(super) extern "C" fn break_out(core: &mut Core) {
    let address = match core.random.below(3) {
        0 => core.random.word(),
        1 => core.arena,
        _ => crate::orders::word(&crate::orders::ORDERS.monitor),
    };
    // SAFETY: none: this is what the monitor is for.
    unsafe {
        match core.random.below(11) {
            0 => asm!("vmrun", in("rax") address),
            1 => asm!("vmload", in("rax") address),
            2 => asm!("vmsave", in("rax") address),
            3 => asm!("vmmcall", in("rax") address),
            4 => asm!("clgi"),
            5 => asm!("stgi"),
            6 => asm!("skinit", in("eax") address as u32),
            7 => asm!("invlpga", in("rax") address, in("ecx") 0),
            // VMCALL, VMXON, GETSEC of the other vendor.
            8 => asm!("vmcall", in("rax") address),
            9 => asm!("vmxon [{}]", in(reg) &address),
            _ => asm!(".byte 0x0f, 0x37", in("eax") address as u32),
        }
    }
}
