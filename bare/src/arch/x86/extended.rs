//! Extended registers of threads: x87, SSE, AVX and what else the processor has.

extern crate alloc;

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::core_area;
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
/// Bits of MXCSR that every processor with 64 bits has.
const MXCSR_MASK: u32 = 0xffff;

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
    /// The core that had these very registers last.
    core: Option<u32>,
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
        let mut state = Self {
            area,
            layout,
            core: None,
        };
        state.reset();
        Some(state)
    }

    /// Which components there are (XCR0); 0 without XSAVE.
    #[must_use]
    pub fn enabled() -> u64 {
        ENABLED.load(Ordering::Acquire)
    }

    /// The registers as XSAVE or FXSAVE laid them out when they were last saved.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let size = match Self::enabled() {
            0 => LEGACY_SIZE,
            _ => self.layout.size(),
        };
        // SAFETY: the area is at least so large, was zeroed, and belongs to the value.
        unsafe { core::slice::from_raw_parts(self.area.as_ptr(), size) }
    }

    /// Takes registers over that somebody else has laid out; what there is less of is as a program
    /// begins with it. Whatever the bytes are, they can be loaded.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        self.reset();
        let area = self.area.as_ptr();
        let size = bytes.len().min(self.bytes().len());
        // SAFETY: all of it lies in the area. Reserved bits of MXCSR and of the header, which XRSTOR
        // would fault on, are cleared.
        unsafe {
            area.copy_from_nonoverlapping(bytes.as_ptr(), size);
            let mxcsr = area.add(24).cast::<u32>();
            mxcsr.write(mxcsr.read() & MXCSR_MASK);
            let header = area.add(LEGACY_SIZE).cast::<u64>();
            let present = if size < HEADER_END {
                0x3
            } else {
                header.read()
            };
            header.write(present & Self::enabled());
            header
                .add(1)
                .write_bytes(0, (HEADER_END - LEGACY_SIZE) / 8 - 1);
        }
    }

    /// Makes them what a program begins with.
    pub fn reset(&mut self) {
        self.core = None;
        // SAFETY: the area is so large, as `new` sees to.
        unsafe {
            self.area.write_bytes(0, self.layout.size());
            self.area.cast::<u16>().write(CONTROL_WORD);
            self.area.add(24).cast::<u32>().write(MXCSR);
            // Of the header: x87 and SSE are in the area, all else as after a reset.
            self.area.add(LEGACY_SIZE).cast::<u64>().write(0x3);
        }
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
        self.are_here();
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

    /// Whether the calling core has just these registers: nobody else's have been loaded since, there
    /// or, of these, elsewhere.
    fn is_here(&self) -> bool {
        let of_core = core_area::extended().load(Ordering::Relaxed);
        self.core == Some(core_area::current().index) && of_core == self.area.addr().get()
    }

    fn are_here(&mut self) {
        self.core = Some(core_area::current().index);
        core_area::extended().store(self.area.addr().get(), Ordering::Relaxed);
    }

    /// Gives them to this core, if it does not have them still.
    pub fn load(&mut self) {
        if self.is_here() {
            return;
        }
        self.are_here();
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
