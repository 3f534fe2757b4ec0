//! Per-core data, to which GS points while the kernel runs.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::AtomicUsize;

use super::cpu::{Msr, change_cr4, read_msr, write_msr};
use super::descriptor::Descriptors;
use super::machine_check;
#[cfg(feature = "programs")]
use super::ports::PortSet;

/// Per-core data. It does not move once the core has begun to use it.
#[repr(C, align(64))]
pub struct PerCore {
    /// Its own address, read through GS. Offset 0.
    this: *mut PerCore,
    /// Kernel stack pointer while a program runs. Offset 8.
    kernel_rsp: u64,
    /// Registers of the program that runs, a `UserContext`. Offset 16.
    context: *mut (),
    /// Scratch word of the entry code. Offset 24.
    scratch: u64,
    /// Index among the kernel's cores; the first is 0.
    index: u32,
    /// Id of its local APIC.
    apic_id: u32,
    /// Address of the [`ExtendedState`](super::extended_state::ExtendedState) area that the core's
    /// registers were last loaded from or saved to; 0 for none.
    loaded_state: AtomicUsize,
    descriptors: UnsafeCell<Descriptors>,
}

// Offsets that trap.S uses.
const _: () = {
    assert!(offset_of!(PerCore, this) == 0);
    assert!(offset_of!(PerCore, kernel_rsp) == 8);
    assert!(offset_of!(PerCore, context) == 16);
    assert!(offset_of!(PerCore, scratch) == 24);
};

impl PerCore {
    /// Creates the data of a core that has not started yet.
    #[must_use]
    pub fn new(index: u32, apic_id: u32) -> Self {
        Self {
            this: core::ptr::null_mut(),
            kernel_rsp: 0,
            context: core::ptr::null_mut(),
            scratch: 0,
            index,
            apic_id,
            loaded_state: AtomicUsize::new(0),
            descriptors: UnsafeCell::new(Descriptors::new()),
        }
    }

    /// Creates the data of a core in memory that is zero, for a kernel without an allocator.
    ///
    /// # Safety
    /// `place` is valid for writes, aligned, zero, and used by nobody else from now on.
    pub unsafe fn in_place(place: *mut Self, index: u32, apic_id: u32) -> &'static mut Self {
        // SAFETY: 1. zeros are a valid value of every field. 2. Nobody else uses it, by the caller.
        let core = unsafe { &mut *place };
        core.index = index;
        core.apic_id = apic_id;
        core.descriptors.get_mut().fill();
        core
    }

    /// Installs this on the calling core, with its descriptor tables. From now on [`current`] returns
    /// it.
    pub fn install(&'static mut self) {
        self.this = self;
        let this = self.this as u64;
        self.descriptors.get_mut().load();
        // SAFETY: 1. the area is static and from now on only accessed through GS. 2. The registers
        // exist on every x86-64 processor.
        unsafe {
            write_msr(Msr::GsBase as u32, this);
            write_msr(Msr::KernelGsBase as u32, 0);
            change_cr4(0, machine_check::cr4());
        }
    }
}

/// The calling core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Index among the kernel's cores; the first is 0.
    pub index: u32,
    /// Id of its local APIC.
    pub apic_id: u32,
}

/// Returns the calling core, which has installed its [`PerCore`].
#[must_use]
pub fn current() -> Core {
    let area = own();
    // SAFETY: nobody writes these two words after the area was installed.
    unsafe {
        Core {
            index: (*area).index,
            apic_id: (*area).apic_id,
        }
    }
}

/// Returns the calling core's area; `None` before one is installed on it.
#[must_use]
pub fn installed() -> Option<*const PerCore> {
    // SAFETY: every x86-64 processor has the register, which is 0 after INIT.
    let base = unsafe { read_msr(Msr::GsBase as u32) };
    (base != 0).then_some(base as *const PerCore)
}

/// Address of the area that the calling core's extended state was last loaded from or saved to.
#[cfg(feature = "programs")]
pub(super) fn loaded_state() -> &'static AtomicUsize {
    // SAFETY: the area is static, and there are only shared references to this word.
    unsafe { &(*own()).loaded_state }
}

/// Lets programs on the calling core use these ports, and no others.
#[cfg(feature = "programs")]
pub(super) fn permit_ports(ports: Option<&PortSet>) {
    // SAFETY: only this core changes its tables, only here once they are loaded, and not from handlers of
    // interrupts; the processor reads the bitmap while a program runs.
    let descriptors = unsafe { &mut *(*own()).descriptors.get() };
    if ports.is_some() || descriptors.has_ports() {
        descriptors.permit_ports(ports);
    }
}

/// Returns the calling core's area.
fn own() -> *const PerCore {
    let area: *const PerCore;
    // SAFETY: while the kernel runs, GS points to the core's area (trap.S), whose first word is its
    // own address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) area, options(nostack, preserves_flags, readonly));
    }
    area
}
