//! Extended states of a core (XSAVE): saved with the others, and loaded, as far as the core has them.
//!
//! Source: Intel SDM volume 1, chapter 13.

use core::arch::asm;

use insula_bare::cpu;

use crate::policy::{saved, xcr0};

/// Bytes of the extended state that XRSTOR wants to be zero, at least: its header.
const LEGACY_SIZE: usize = 512;
/// Where FXSAVE writes the bits of MXCSR that the processor has.
const MXCSR_MASK: usize = 28;
const HEADER_SIZE: usize = 64;

/// Whether the processor has XSAVE, which is then enabled.
pub fn has_xsave() -> bool {
    const CR4_OSXSAVE: u64 = 1 << 18;
    let has_it = cpu::cpuid(1, 0).ecx & 1 << 26 != 0;
    if has_it {
        // SAFETY: the processor has the bit, and the monitor uses none of the states. The guest's CR4 is
        // another.
        unsafe { cpu::change_cr4(0, CR4_OSXSAVE) }
    }
    has_it
}

/// Extended states that only a kernel can enable.
pub fn supervisor_states() -> u64 {
    let leaf = cpu::cpuid(0xd, 1);
    u64::from(leaf.edx) << 32 | u64::from(leaf.ecx)
}

/// Extended states that programs can use.
pub fn program_states() -> u64 {
    let leaf = cpu::cpuid(0xd, 0);
    u64::from(leaf.edx) << 32 | u64::from(leaf.eax)
}

/// Saves all enabled extended states, and those of SSE, which a kernel without XSAVE does not enable there.
/// Returns whether they fit.
///
/// # Safety
/// There are `room` bytes from `to` on, which is aligned to 64.
pub unsafe fn save(to: *mut u8, room: usize) -> bool {
    // SAFETY: as promised by the caller; XSAVE does not write its whole header.
    unsafe {
        enable_sse();
        asm!("fxsave64 [{}]", in(reg) to, options(nostack, preserves_flags));
        if !has_xsave() {
            return true;
        }
        if cpu::cpuid(0xd, 0).ebx as usize > room {
            return false;
        }
        to.add(LEGACY_SIZE).write_bytes(0, HEADER_SIZE);
        asm!("xsave64 [{}]", in(reg) to, in("eax") u32::MAX, in("edx") u32::MAX,
             options(nostack, preserves_flags));
    }
    true
}

/// Loads them, for which they are enabled first.
///
/// # Safety
/// [`save`] or a file filled the bytes from `from` on, which are the core's own, aligned to 64.
pub unsafe fn load(from: *mut u8, xcr0: u64) {
    const X87: u64 = 1 << 0;
    const SSE: u64 = 1 << 1;
    enable_sse();
    let has_xsave = has_xsave();
    // It was not there where the state is from if this is 0.
    let xcr0 = xcr0 | X87;
    let is_valid = !has_xsave || xcr0::is_valid(xcr0, program_states());
    assert!(
        is_valid,
        "the state has extended states that the processor lacks"
    );
    // SAFETY: as promised by the caller. The values are valid, and so is the head.
    unsafe {
        let head = &mut *from.cast::<[u8; saved::HEAD_SIZE]>();
        saved::sanitize_extended(head, xcr0, mxcsr_mask());
        if has_xsave {
            cpu::write_xcr0(xcr0);
            asm!("xrstor64 [{}]", in(reg) from, in("eax") u32::MAX, in("edx") u32::MAX,
                 options(nostack, preserves_flags));
        }
        if !has_xsave || xcr0 & SSE == 0 {
            asm!("fxrstor64 [{}]", in(reg) from, options(nostack, preserves_flags));
        }
    }
}

/// The bits of MXCSR that the processor has.
fn mxcsr_mask() -> u32 {
    #[repr(align(16))]
    struct Legacy([u8; LEGACY_SIZE]);
    let mut legacy = Legacy([0; LEGACY_SIZE]);
    // SAFETY: it has the size and the alignment that FXSAVE needs.
    unsafe {
        asm!("fxsave64 [{}]", in(reg) legacy.0.as_mut_ptr(), options(nostack, preserves_flags));
    }
    let mask = legacy.0[MXCSR_MASK..].first_chunk().unwrap_or(&[0; 4]);
    saved::mxcsr_mask(u32::from_le_bytes(*mask))
}

/// Has FXSAVE and FXRSTOR include the registers of SSE, which is the kernel's to say.
fn enable_sse() {
    const CR4_OSFXSR: u64 = 1 << 9;
    // SAFETY: every processor with 64-bit mode has the bit. The guest's CR4 is another.
    unsafe { cpu::change_cr4(0, CR4_OSFXSR) }
}

/// Reads XCR0.
///
/// # Safety
/// CR4.OSXSAVE is set.
pub unsafe fn read_xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: as promised by the caller.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
             options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}
