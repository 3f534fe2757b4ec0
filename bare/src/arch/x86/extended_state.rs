//! Extended processor state of threads: x87, SSE, AVX and so on, by XSAVE, and the bases of FS and GS.

extern crate alloc;

use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::cpu::{change_cr4, cpuid, write_xcr0};
use super::per_core;
use super::segment_bases::SegmentBases;

/// CR4: XSAVE.
const CR4_OSXSAVE: u64 = 1 << 18;
/// Components used: x87, SSE, AVX, AVX-512 (three), PKRU; none needs a permission of its own.
const USED_COMPONENTS: u64 = 0x1 | 0x2 | 0x4 | 0xe0 | 0x200;
/// Size of the FXSAVE area: x87 and SSE, without XSAVE.
const LEGACY_SIZE: usize = 512;
const HEADER_END: usize = 576;
const ALIGNMENT: usize = 64;
/// Initial MXCSR and x87 control word, as on Linux.
const MXCSR: u32 = 0x1f80;
const CONTROL_WORD: u16 = 0x37f;
/// MXCSR bits that every 64-bit processor has.
const MXCSR_MASK: u32 = 0xffff;

static SIZE: AtomicUsize = AtomicUsize::new(LEGACY_SIZE);
static ENABLED: AtomicU64 = AtomicU64::new(0);

/// Enables the components on this core.
pub(super) fn enable() {
    if cpuid(1, 0).ecx & 1 << 26 == 0 {
        return;
    }
    let enabled = match is_set_by_base() {
        true => read_xcr0() & USED_COMPONENTS,
        false => enable_components(),
    };
    // Read again: the size depends on the enabled components.
    SIZE.store(cpuid(0xd, 0).ebx as usize, Ordering::Relaxed);
    ENABLED.store(enabled, Ordering::Release);
}

/// Enables what the processor has and programs use. Returns it.
fn enable_components() -> u64 {
    let leaf = cpuid(0xd, 0);
    let supported = u64::from(leaf.edx) << 32 | u64::from(leaf.eax);
    let enabled = supported & USED_COMPONENTS;
    // SAFETY: the processor has XSAVE and these components of its state.
    unsafe {
        change_cr4(0, CR4_OSXSAVE);
        write_xcr0(enabled);
    }
    enabled
}

/// Whether the base shares the core: then XCR0 is its own.
fn is_set_by_base() -> bool {
    #[cfg(feature = "boot-protocol")]
    return super::called::page().is_some();
    #[cfg(not(feature = "boot-protocol"))]
    false
}

/// Reads XCR0. The base has set CR4.OSXSAVE.
fn read_xcr0() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading has no effect; CR4.OSXSAVE is set, as the base shares no core without.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
             options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Extended state of a thread that is not running.
#[derive(Debug)]
pub struct ExtendedState {
    area: NonNull<u8>,
    layout: Layout,
    bases: SegmentBases,
    /// Core that these registers were last loaded on or saved from.
    core: Option<u32>,
}

// SAFETY: the value owns the area.
unsafe impl Send for ExtendedState {}

impl ExtendedState {
    /// Creates the initial state of a program; `None` if there is no memory.
    #[must_use]
    pub fn new() -> Option<Self> {
        let size = SIZE.load(Ordering::Relaxed).max(HEADER_END);
        let layout = Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let area = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let mut state = Self {
            area,
            layout,
            bases: SegmentBases::default(),
            core: None,
        };
        state.reset();
        Some(state)
    }

    /// Returns the enabled components (XCR0); 0 without XSAVE.
    #[must_use]
    pub fn enabled() -> u64 {
        ENABLED.load(Ordering::Acquire)
    }

    /// Returns the area that XSAVE or FXSAVE last wrote.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let size = match Self::enabled() {
            0 => LEGACY_SIZE,
            _ => self.layout.size(),
        };
        // SAFETY: the area is at least that large, was zeroed, and is owned by the value.
        unsafe { core::slice::from_raw_parts(self.area.as_ptr(), size) }
    }

    /// Replaces the state by bytes of any origin; what they lack is set to its initial value. Any
    /// bytes can be loaded: invalid bits are cleared.
    pub fn set_bytes(&mut self, bytes: &[u8]) {
        self.reset();
        let area = self.area.as_ptr();
        let size = bytes.len().min(self.bytes().len());
        // SAFETY: all writes are within the area. Reserved bits of MXCSR and of the header, on
        // which XRSTOR would fault, are cleared.
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

    /// Returns the bases of FS and GS that were last saved or set.
    #[must_use]
    pub fn bases(&self) -> SegmentBases {
        self.bases
    }

    /// Sets the bases of FS and GS of a thread whose state is saved; the next load takes them.
    pub fn set_bases(&mut self, bases: SegmentBases) {
        self.core = None;
        self.bases = bases;
    }

    /// Sets the initial state of a program, but for the bases of FS and GS.
    pub fn reset(&mut self) {
        if self.is_loaded() {
            self.bases.save();
        }
        self.core = None;
        // SAFETY: `new` makes the area this large.
        unsafe {
            self.area.write_bytes(0, self.layout.size());
            self.area.cast::<u16>().write(CONTROL_WORD);
            self.area.add(24).cast::<u32>().write(MXCSR);
            // XSAVE header: x87 and SSE are in the area, all other components are initial.
            self.area.add(LEGACY_SIZE).cast::<u64>().write(0x3);
        }
    }

    /// Copies the state, for a new thread.
    #[must_use]
    pub fn duplicate(&self) -> Option<Self> {
        let mut copy = Self::new()?;
        copy.bases = self.bases;
        // SAFETY: both areas have this size, which does not change once cores run.
        unsafe {
            copy.area
                .copy_from_nonoverlapping(self.area, self.layout.size())
        };
        Some(copy)
    }

    /// Saves the registers of this core.
    pub fn save(&mut self) {
        self.mark_loaded();
        self.bases.save();
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

    /// Whether the calling core still has these registers: it has loaded no others since, and they
    /// have not been loaded on another core.
    fn is_loaded(&self) -> bool {
        self.core.is_some_and(|core| {
            let loaded = per_core::loaded_state().load(Ordering::Relaxed);
            core == per_core::current().index && loaded == self.area.addr().get()
        })
    }

    fn mark_loaded(&mut self) {
        self.core = Some(per_core::current().index);
        per_core::loaded_state().store(self.area.addr().get(), Ordering::Relaxed);
    }

    /// Loads the registers on this core, unless it still has them.
    pub fn load(&mut self) {
        if self.is_loaded() {
            return;
        }
        self.mark_loaded();
        self.bases.load();
        let enabled = ENABLED.load(Ordering::Acquire);
        // SAFETY: `new`, `set_bytes` or `save` wrote the area: no reserved bit is set.
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
        // SAFETY: `new` allocated it with this layout.
        unsafe { dealloc(self.area.as_ptr(), self.layout) }
    }
}
