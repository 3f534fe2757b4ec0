//! Registers of a core that runs programs.

use super::cpu::{Msr, change_cr0, change_cr4, cpuid, read_msr, write_msr};
use super::{extended_state, mitigation, per_core, segment_bases};

/// CR0: write protection also in the kernel; no emulation; FPU present, its errors are exceptions;
/// caches on (CD and NW are set after INIT).
const CR0_SET: u64 = 1 << 16 | 1 << 5 | 1 << 1;
const CR0_CLEAR: u64 = 1 << 30 | 1 << 29 | 1 << 3 | 1 << 2;
/// CR4: SSE and its exceptions.
const CR4_SET: u64 = 1 << 9 | 1 << 10;
/// CR4: the kernel cannot execute or access programs' pages; programs may set FS and GS base.
const CR4_SMEP: u64 = 1 << 20;
const CR4_SMAP: u64 = 1 << 21;
const CR4_FSGSBASE: u64 = 1 << 16;
const CR4_UMIP: u64 = 1 << 11;
/// Memory types as Linux has them, whose entries the base's module stores: WB, WC, UC-, UC, WB, WP,
/// UC-, WT (`pat_bp_init` of Linux).
const MEMORY_TYPES: u64 = 0x0407_0506_0007_0106;
/// EFER: SYSCALL, NX.
const EFER_SET: u64 = 1 << 0 | 1 << 11;
/// Flags that SYSCALL clears: TF, IF, DF, IOPL, NT, AC.
const SYSCALL_CLEARS: u64 = 1 << 8 | 1 << 9 | 1 << 10 | 3 << 12 | 1 << 14 | 1 << 18;
/// SYSCALL and SYSRET: the kernel's code segment, and the one below the program's.
const STAR: u64 = 0x08 << 32 | 0x10 << 48;

/// Prepares the calling core, which has installed its [`PerCore`](per_core::PerCore), for programs.
pub fn enable() {
    // SAFETY: the registers exist on every x86-64 processor, or were found by CPUID; the values are
    // those that trap.S and the page tables are written for.
    unsafe {
        write_msr(Msr::Pat as u32, MEMORY_TYPES);
        change_cr0(CR0_CLEAR, CR0_SET);
        change_cr4(0, CR4_SET | optional_features());
        let efer = read_msr(Msr::Efer as u32);
        write_msr(Msr::Efer as u32, efer | EFER_SET);
        write_msr(Msr::Star as u32, STAR);
        write_msr(Msr::LStar as u32, super::trap::syscall_entry());
        write_msr(Msr::FMask as u32, SYSCALL_CLEARS);
        if has_rdtscp() {
            write_msr(Msr::TscAux as u32, u64::from(per_core::current().index));
        }
    }
    extended_state::enable();
    mitigation::detect();
    segment_bases::detect();
}

/// Returns the optional CR4 bits that the processor has.
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

/// Whether the processor has RDTSCP or RDPID, by which a program reads its core number.
#[must_use]
pub fn has_rdtscp() -> bool {
    cpuid(0x8000_0001, 0).edx & 1 << 27 != 0 || cpuid(7, 0).ecx & 1 << 22 != 0
}
