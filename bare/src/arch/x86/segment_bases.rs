//! Bases of FS and GS of a thread.
//!
//! The kernel uses GS alone, and SWAPGS keeps the program's away from it. So a program's bases stay
//! in the registers until another thread runs on the core, as its extended state does.

use core::sync::atomic::{AtomicBool, Ordering};

use super::cpu::{Msr, cpuid, read_msr, write_msr};
use super::user::USER_END;

/// Cached result of CPUID, which is slow under a hypervisor.
static HAS_FSGSBASE: AtomicBool = AtomicBool::new(false);

/// Whether programs can set their FS and GS base themselves, so that the kernel has to read them
/// back.
#[must_use]
pub fn has_fsgsbase() -> bool {
    HAS_FSGSBASE.load(Ordering::Relaxed)
}

/// Detects that. Each core calls it; all cores are alike.
pub(super) fn detect() {
    HAS_FSGSBASE.store(cpuid(7, 0).ebx & 1 != 0, Ordering::Relaxed);
}

/// Bases of FS and GS of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentBases {
    /// Base of FS: thread-local storage.
    pub fs: u64,
    /// Base of GS.
    pub gs: u64,
}

impl SegmentBases {
    /// Whether a base is one that a program can ask the kernel for.
    #[must_use]
    pub fn is_valid(base: u64) -> bool {
        base < USER_END
    }

    /// Reads the registers of the calling core, if the program may have changed them.
    pub(super) fn save(&mut self) {
        if has_fsgsbase() {
            // SAFETY: both registers exist on every x86-64 processor.
            unsafe {
                self.fs = read_msr(Msr::FsBase as u32);
                self.gs = read_msr(Msr::KernelGsBase as u32);
            }
        }
    }

    /// Writes the registers of the calling core.
    pub(super) fn load(&self) {
        // SAFETY: 1. both are canonical: valid ones are, and the processor lets programs set no
        // others. 2. The kernel does not use FS, and SWAPGS makes the second one GS only on the way
        // to the program.
        unsafe {
            write_msr(Msr::FsBase as u32, self.fs);
            write_msr(Msr::KernelGsBase as u32, self.gs);
        }
    }
}
