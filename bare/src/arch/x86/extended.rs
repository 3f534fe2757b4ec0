//! Extended registers of threads: x87, SSE, AVX and what else the processor has.

extern crate alloc;

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::cpu::{change_cr4, cpuid};

/// CR4: XSAVE.
const CR4_OSXSAVE: u64 = 1 << 18;
/// x87, SSE, AVX, AVX-512 (three), PKRU: what needs no permission of its own.
const WANTED: u64 = 0x1 | 0x2 | 0x4 | 0xe0 | 0x200;
/// Without XSAVE: x87 and SSE, by FXSAVE.
const LEGACY_SIZE: usize = 512;
const HEADER_END: usize = 576;
const ALIGNMENT: usize = 64;
/// MXCSR and x87 control word as Linux begins with them.
const MXCSR: u32 = 0x1f80;
const CONTROL_WORD: u16 = 0x37f;

static SIZE: AtomicUsize = AtomicUsize::new(LEGACY_SIZE);
static ENABLED: AtomicU64 = AtomicU64::new(0);

/// Turns on, on this core, what the processor has.
pub(super) fn enable() {
    if cpuid(1, 0).ecx & 1 << 26 == 0 {
        return;
    }
    let leaf = cpuid(0xd, 0);
    let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    let enabled = supported & WANTED;
    // SAFETY: the processor has XSAVE and these components of its state.
    unsafe {
        change_cr4(0, CR4_OSXSAVE);
        asm!("xsetbv", in("ecx") 0, in("eax") enabled as u32, in("edx") (enabled >> 32) as u32,
             options(nostack, preserves_flags));
    }
    // Read again: the size goes by what is enabled.
    SIZE.store(cpuid(0xd, 0).ebx as usize, Ordering::Relaxed);
    ENABLED.store(enabled, Ordering::Release);
}

/// The extended registers of a thread that is not running.
#[derive(Debug)]
pub struct ExtendedState {
    area: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the area belongs to the value alone.
unsafe impl Send for ExtendedState {}

impl ExtendedState {
    /// As a program begins; `None` when there is no memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        let size = SIZE.load(Ordering::Relaxed).max(HEADER_END);
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let area = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        // SAFETY: both lie in the area's first 512 bytes.
        unsafe {
            area.cast::<u16>().write(CONTROL_WORD);
            area.add(24).cast::<u32>().write(MXCSR);
            // Of the header: x87 and SSE are in the area, all else as after a reset.
            area.add(LEGACY_SIZE).cast::<u64>().write(0x3);
        }
        Some(Self { area, layout })
    }

    /// A copy: of a thread that begins as another is.
    #[must_use]
    pub fn duplicate(&self) -> Option<Self> {
        let copy = Self::new()?;
        // SAFETY: both areas have this size, as it does not change once cores run.
        unsafe {
            copy.area
                .copy_from_nonoverlapping(self.area, self.layout.size())
        };
        Some(copy)
    }

    /// Takes the registers of this core.
    pub fn save(&mut self) {
        let enabled = ENABLED.load(Ordering::Acquire);
        // SAFETY: the area is large enough for what is enabled, and aligned.
        unsafe {
            if enabled == 0 {
                asm!("fxsave64 [{}]", in(reg) self.area.as_ptr(), options(nostack, preserves_flags));
            } else {
                asm!("xsave64 [{}]", in(reg) self.area.as_ptr(), in("eax") enabled as u32,
                     in("edx") (enabled >> 32) as u32, options(nostack, preserves_flags));
            }
        }
    }

    /// Gives them to this core.
    pub fn load(&self) {
        let enabled = ENABLED.load(Ordering::Acquire);
        // SAFETY: what lies there was made by `new` or `save`: no reserved bit is set.
        unsafe {
            if enabled == 0 {
                asm!("fxrstor64 [{}]", in(reg) self.area.as_ptr(), options(nostack, preserves_flags));
            } else {
                asm!("xrstor64 [{}]", in(reg) self.area.as_ptr(), in("eax") enabled as u32,
                     in("edx") (enabled >> 32) as u32, options(nostack, preserves_flags));
            }
        }
    }
}

impl Drop for ExtendedState {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout.
        unsafe { dealloc(self.area.as_ptr(), self.layout) }
    }
}
