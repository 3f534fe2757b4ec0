//! Registers that neither kind of virtualization switches, of two kernels that have a core in turns: extended
//! states, XCR0 and TSC_AUX.

use core::arch::asm;

use insula_bare::cpu::{self, read_msr, write_msr};

use crate::area::Area;
use crate::extended;

const TSC_AUX: u32 = 0xc000_0103;
/// XCR0: x87 and SSE.
const XCR0_LEAST: u64 = 3;
/// Bytes for an extended state.
const EXTENDED_SIZE: u32 = 0x1000;
/// Offset of MXCSR, and its initial value.
const MXCSR: (usize, u32) = (24, 0x1f80);

/// Those of the kernel that does not have the core.
#[derive(Debug)]
pub struct Exchange {
    /// Places of the extended states: of the node's kernel, and of the one beside it.
    extended: [*mut u8; 2],
    tsc_aux: u64,
    xcr0: u64,
}

impl Exchange {
    /// Those with which the kernel beside the node's starts. `None`: the node's kernel has not enabled
    /// extended states yet, or the processor has more than there is room for.
    ///
    /// # Safety
    /// There is no other for this area, which is the calling core's.
    pub unsafe fn start(area: Area) -> Option<Self> {
        if !extended::has_xsave() || cpu::cpuid(0xd, 0).ecx > EXTENDED_SIZE {
            return None;
        }
        // SAFETY: XSAVE is enabled.
        let xcr0 = unsafe { extended::read_xcr0() };
        if xcr0 & XCR0_LEAST != XCR0_LEAST {
            return None;
        }
        let extended = area.shared_extended();
        // SAFETY: the page is this value's alone; zeros with the initial MXCSR are an initial state.
        unsafe {
            extended[1].write_bytes(0, EXTENDED_SIZE as usize);
            extended[1].add(MXCSR.0).cast::<u32>().write(MXCSR.1);
        }
        Some(Self {
            extended,
            tsc_aux: 0,
            xcr0,
        })
    }

    /// Exchanges them.
    ///
    /// # Safety
    /// `from` is the number of the kernel that has had them: 0 of the node's, 1 of the one beside it.
    pub unsafe fn exchange(&mut self, from: usize) {
        // SAFETY: 1. as promised by the caller, and each area is aligned, large enough, and zero or
        // written by XSAVE. 2. A base without TSC_AUX shares no core. 3. The value of XCR0 was in use.
        unsafe {
            xsave(self.extended[from]);
            let xcr0 = extended::read_xcr0();
            if xcr0 != self.xcr0 {
                cpu::write_xcr0(self.xcr0);
                self.xcr0 = xcr0;
            }
            xrstor(self.extended[1 - from]);
            let tsc_aux = read_msr(TSC_AUX);
            write_msr(TSC_AUX, self.tsc_aux);
            self.tsc_aux = tsc_aux;
        }
    }
}

unsafe fn xsave(to: *mut u8) {
    // SAFETY: as promised by the caller; XSAVE is enabled.
    unsafe {
        asm!("xsave64 [{}]", in(reg) to, in("eax") u32::MAX, in("edx") u32::MAX,
             options(nostack, preserves_flags));
    }
}

unsafe fn xrstor(from: *const u8) {
    // SAFETY: as promised by the caller; XSAVE is enabled.
    unsafe {
        asm!("xrstor64 [{}]", in(reg) from, in("eax") u32::MAX, in("edx") u32::MAX,
             options(nostack, preserves_flags));
    }
}
