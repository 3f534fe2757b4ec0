//! What belongs to one core: its area, to which GS points while the kernel runs.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::cpu::{Msr, change_cr0, change_cr4, cpuid, read_msr, write_msr};
use super::descriptor::Descriptors;
use super::user::UserContext;
use super::{extended, machine_check, mitigation};

/// All that a core needs of its own. It never moves once the core has begun to use it.
#[repr(C, align(64))]
pub struct CoreArea {
    /// Its own address, to be found through GS. Offset 0.
    this: *mut CoreArea,
    /// The kernel's stack pointer while a program runs. Offset 8.
    kernel_rsp: u64,
    /// The registers of the program that runs. Offset 16.
    context: *mut UserContext,
    /// For the entry code. Offset 24.
    scratch: u64,
    /// Its number among the kernel's cores, the first is 0.
    index: u32,
    /// The id of its local APIC.
    apic_id: u32,
    /// Where the extended registers that it has were loaded from or saved to; 0: nowhere.
    extended: AtomicUsize,
    descriptors: UnsafeCell<Descriptors>,
}

// As trap.S has them.
const _: () = {
    assert!(offset_of!(CoreArea, this) == 0);
    assert!(offset_of!(CoreArea, kernel_rsp) == 8);
    assert!(offset_of!(CoreArea, context) == 16);
    assert!(offset_of!(CoreArea, scratch) == 24);
};

/// CR0: write protection also for the kernel; no emulation; the FPU is there; report its errors by
/// exceptions; not (CD, NW) without caches, as a core is after INIT.
const CR0_SET: u64 = 1 << 16 | 1 << 5 | 1 << 1;
const CR0_CLEAR: u64 = 1 << 30 | 1 << 29 | 1 << 3 | 1 << 2;
/// CR4: SSE, its exceptions.
const CR4_SET: u64 = 1 << 9 | 1 << 10;
/// CR4: the kernel neither executes nor reaches programs' pages; programs may set FS and GS base.
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_UMIP: u64 = 1 << 11;
/// EFER: SYSCALL, NX.
const EFER_SET: u64 = 1 << 0 | 1 << 11;
/// SYSCALL clears these flags: TF, IF, DF, IOPL, NT, AC.
const SYSCALL_CLEARS: u64 = 1 << 8 | 1 << 9 | 1 << 10 | 3 << 12 | 1 << 14 | 1 << 18;
/// SYSCALL: the kernel's code segment, and the one below the program's.
const STAR: u64 = 0x08 << 32 | 0x10 << 48;

impl CoreArea {
    /// An area that no core uses yet.
    #[must_use]
    pub fn new(index: u32, apic_id: u32) -> Self {
        Self {
            this: core::ptr::null_mut(),
            kernel_rsp: 0,
            context: core::ptr::null_mut(),
            scratch: 0,
            index,
            apic_id,
            extended: AtomicUsize::new(0),
            descriptors: UnsafeCell::new(Descriptors::new()),
        }
    }

    /// Makes this the area of the core that calls: its descriptor tables and registers are set up,
    /// and from now on [`current`] is it.
    pub fn adopt(&'static mut self) {
        self.this = self;
        let this = self.this as u64;
        self.descriptors.get_mut().load();
        // SAFETY: 1. the area is static and from now on only reached through GS. 2. The registers
        // are those of every x86-64 processor, or were found by CPUID; the values are those that
        // trap.S and the page tables are written for.
        unsafe {
            write_msr(Msr::GsBase as u32, this);
            write_msr(Msr::KernelGsBase as u32, 0);
            change_cr0(CR0_CLEAR, CR0_SET);
            change_cr4(0, CR4_SET | optional_features() | machine_check::cr4());
            let efer = read_msr(Msr::Efer as u32);
            write_msr(Msr::Efer as u32, efer | EFER_SET);
            write_msr(Msr::Star as u32, STAR);
            write_msr(Msr::LStar as u32, super::trap::syscall_entry());
            write_msr(Msr::FMask as u32, SYSCALL_CLEARS);
            if tells_core() {
                write_msr(Msr::TscAux as u32, u64::from(self.index));
            }
        }
        extended::enable();
        mitigation::prepare();
        SETS_BASES.store(can_set_bases(), Ordering::Relaxed);
    }
}

/// What CPUID says can be had of CR4.
fn optional_features() -> u64 {
    let leaf = cpuid(7, 0);
    let feature = |register: u32, bit: u32, flag: u64| match register & 1 << bit {
        0 => 0,
        _ => flag,
    };
    feature(leaf.ebx, 7, CR4_SMEP)
        | feature(leaf.ebx, 20, CR4_SMAP)
        | feature(leaf.ebx, 0, CR4_FSGSBASE)
        | feature(leaf.ecx, 2, CR4_UMIP)
}

/// Whether the processor has RDTSCP or RDPID, which tell a program its core.
#[must_use]
pub fn tells_core() -> bool {
    cpuid(0x8000_0001, 0).edx & 1 << 27 != 0 || cpuid(7, 0).ecx & 1 << 22 != 0
}

/// Whether programs can set their FS and GS base by themselves, so that the kernel has to read them.
#[must_use]
pub fn programs_set_bases() -> bool {
    SETS_BASES.load(Ordering::Relaxed)
}

/// That, as CPUID has told: under a hypervisor it is dear to ask each time that a program is entered.
static SETS_BASES: AtomicBool = AtomicBool::new(false);

fn can_set_bases() -> bool {
    cpuid(7, 0).ebx & 1 != 0
}

/// The core that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number among the kernel's cores, the first is 0.
    pub index: u32,
    /// The id of its local APIC.
    pub apic_id: u32,
}

/// The core that calls, which has adopted an area.
#[must_use]
pub fn current() -> Core {
    let area = own();
    // SAFETY: nobody writes these two words after the area was adopted.
    unsafe {
        Core {
            index: (*area).index,
            apic_id: (*area).apic_id,
        }
    }
}

/// Where the calling core's extended registers were loaded from or saved to.
pub(super) fn extended() -> &'static AtomicUsize {
    // SAFETY: the area stays, and of this word there are only shared references.
    unsafe { &(*own()).extended }
}

/// The area of the core that calls.
fn own() -> *const CoreArea {
    let area: *const CoreArea;
    // SAFETY: GS points to the core's area while the kernel runs (trap.S), whose first word is its
    // address.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) area, options(nostack, preserves_flags, readonly));
    }
    area
}
