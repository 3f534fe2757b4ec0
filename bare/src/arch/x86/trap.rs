//! Exceptions and interrupts taken while the kernel itself runs.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{cpu, machine_check};

/// Vector that trap.S stores for a system call.
#[cfg(feature = "programs")]
pub(super) const SYSCALL: u64 = 256;
/// First vector of interrupts.
pub const FIRST_INTERRUPT: u64 = 32;
/// Vector of a non-maskable interrupt.
pub const NMI: u8 = 2;
/// Vector of a page fault.
pub const PAGE_FAULT: u64 = 14;

/// Stack frame of an exception or interrupt in the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "they are the processor's names")]
pub struct KernelFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rbx: u64,
    pub rax: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// Kernel's handler of an interrupt that arrives while the kernel waits for one.
pub type InterruptHandler = fn(vector: u8);

static HANDLER: AtomicUsize = AtomicUsize::new(0);
/// Set by a kernel that stops: from then on an NMI halts the core. One byte, read by trap.S.
#[cfg_attr(target_os = "none", unsafe(export_name = "bare_stop_on_nmi"))]
static STOP_ON_NMI: AtomicBool = AtomicBool::new(false);

/// Address of the kernel's own entry for NMIs; 0 for none. Read by trap.S.
#[cfg_attr(target_os = "none", unsafe(export_name = "bare_nmi_entry"))]
static NMI_ENTRY: AtomicUsize = AtomicUsize::new(0);

/// Sets the entry of all cores for NMIs: assembly that is entered as by the processor. Without one they
/// are ignored.
pub fn set_nmi_entry(entry: usize) {
    NMI_ENTRY.store(entry, Ordering::SeqCst);
}

/// Sets the interrupt handler of all cores.
pub fn set_interrupt_handler(handler: InterruptHandler) {
    HANDLER.store(handler as usize, Ordering::Release);
}

/// From now on an NMI halts the core that receives it. Returns whether this is the first call.
pub fn stop_cores_on_nmi() -> bool {
    !STOP_ON_NMI.swap(true, Ordering::SeqCst)
}

/// Entry from trap.S.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(
    not(target_os = "none"),
    expect(dead_code, reason = "its caller is assembly")
)]
extern "C" fn bare_kernel_trap(frame: &KernelFrame) {
    if frame.vector == machine_check::VECTOR {
        return machine_check::handle();
    }
    if frame.vector < FIRST_INTERRUPT {
        panic!(
            "exception {} in the kernel at {:#x}, error {:#x}, address {:#x}\n{frame:#x?}",
            frame.vector,
            frame.rip,
            frame.error,
            cpu::fault_address(),
        );
    }
    let handler = HANDLER.load(Ordering::Acquire);
    if handler == 0 {
        return;
    }
    // SAFETY: only `set_interrupt_handler` stores there, and only such functions.
    let handler = unsafe { core::mem::transmute::<usize, InterruptHandler>(handler) };
    handler(frame.vector as u8);
}

#[cfg(target_os = "none")]
mod entries {
    unsafe extern "C" {
        static bare_trap_entries: [[u8; 16]; 256];
        #[cfg(feature = "programs")]
        fn bare_syscall_entry();
    }

    pub(in super::super) fn entry(vector: usize) -> u64 {
        let first = &raw const bare_trap_entries as u64;
        first + 16 * vector as u64
    }

    #[cfg(feature = "programs")]
    pub(in super::super) fn syscall_entry() -> u64 {
        bare_syscall_entry as *const () as u64
    }
}

#[cfg(not(target_os = "none"))]
mod entries {
    pub(in super::super) fn entry(_vector: usize) -> u64 {
        0
    }

    #[cfg(feature = "programs")]
    pub(in super::super) fn syscall_entry() -> u64 {
        0
    }
}

pub(super) use entries::entry;
#[cfg(feature = "programs")]
pub(super) use entries::syscall_entry;
