//! VMX operation of the calling core, and the monitor's state in it.
//!
//! Source: Intel SDM volume 3, chapters 24 "Introduction to Virtual Machine Extensions", 27.2.3
//! "Checks on Host Control Registers, MSRs, and SSP", and appendix A.

use core::arch::asm;

use insula_bare::PhysAddr;
use insula_bare::cpu::{self, Msr, read_msr};

use super::controls::Capabilities;
use super::vmcs::{Vmcs, field};
use crate::area::AreaPage;
use crate::guest::Unsupported;

/// By which firmware locks VMX on or off.
const FEATURE_CONTROL: u32 = 0x3a;
const FEATURE_CONTROL_LOCKED: u64 = 1 << 0;
const FEATURE_CONTROL_VMX: u64 = 1 << 2;
/// IA32_VMX_BASIC, and its bits: the revision, the memory type of regions, whether there are the "true"
/// capability registers.
const VMX_BASIC: u32 = 0x480;
const BASIC_REVISION: u64 = 0x7fff_ffff;
const BASIC_WRITE_BACK: u64 = 6 << 50;
const BASIC_TYPE: u64 = 0xf << 50;
const BASIC_TRUE: u64 = 1 << 55;
/// Bits of CR0 and CR4 that must be set in VMX operation.
const CR0_FIXED0: u32 = 0x486;
const CR4_FIXED0: u32 = 0x488;
const VMX_SECONDARY: u32 = 0x48b;
const VMX_EPT_VPID: u32 = 0x48c;
const VMX_TRUE_PIN: u32 = 0x48d;
const VMX_TRUE_PRIMARY: u32 = 0x48e;
const VMX_TRUE_EXIT: u32 = 0x48f;
const VMX_TRUE_ENTRY: u32 = 0x490;

/// Of nested paging: four levels, tables that are cached, 2 MiB pages, INVEPT of all and of one.
const EPT_NEEDED: u64 = 1 << 6 | 1 << 14 | 1 << 16 | 1 << 20 | 1 << 25 | 1 << 26;
/// Of tagged translations: INVVPID, of all.
const VPID_NEEDED: u64 = 1 << 32 | 1 << 42;

const CR4_VMXE: u64 = 1 << 13;
const CR4_OSXSAVE: u64 = 1 << 18;

/// Base and limit of a descriptor table.
#[repr(C, packed)]
#[derive(Default)]
struct Table {
    limit: u16,
    base: u64,
}

/// What a processor must have.
fn check() -> Result<(), Unsupported> {
    if cpu::cpuid(1, 0).ecx & 1 << 5 == 0 {
        return Err(Unsupported::Missing("VMX"));
    }
    // SAFETY: every processor with VMX has these registers; the last one exists where the one before
    // says so.
    unsafe {
        let on = FEATURE_CONTROL_LOCKED | FEATURE_CONTROL_VMX;
        if read_msr(FEATURE_CONTROL) & on != on {
            return Err(Unsupported::Disabled);
        }
        let basic = read_msr(VMX_BASIC);
        if basic & BASIC_TRUE == 0 || basic & BASIC_TYPE != BASIC_WRITE_BACK {
            return Err(Unsupported::Missing("true controls"));
        }
        // The upper half of the primary controls: that there are secondary ones; and EPT of those.
        let has_ept =
            read_msr(VMX_TRUE_PRIMARY) >> 63 != 0 && read_msr(VMX_SECONDARY) >> 33 & 1 != 0;
        if !has_ept || read_msr(VMX_EPT_VPID) & EPT_NEEDED != EPT_NEEDED {
            return Err(Unsupported::Missing("EPT with 2 MiB pages"));
        }
    }
    Ok(())
}

/// The capabilities of the calling core, which [`enter`] has checked.
pub(super) fn capabilities() -> Capabilities {
    // SAFETY: the registers exist, as was checked.
    unsafe {
        Capabilities {
            pin: read_msr(VMX_TRUE_PIN),
            primary: read_msr(VMX_TRUE_PRIMARY),
            secondary: read_msr(VMX_SECONDARY),
            exit: read_msr(VMX_TRUE_EXIT),
            entry: read_msr(VMX_TRUE_ENTRY),
        }
    }
}

/// Enters VMX operation, in which INIT is blocked, and loads a VMCS. CR4.VMXE says from then on that
/// the core is in it.
///
/// # Safety
/// The pages are the core's own.
///
/// # Errors
/// [`Unsupported`].
pub(super) unsafe fn enter(region: AreaPage, vmcs: AreaPage) -> Result<Vmcs, Unsupported> {
    check()?;
    let has_xsave = cpu::cpuid(1, 0).ecx & 1 << 26 != 0;
    // SAFETY: 1. the registers exist. 2. These bits change nothing else for the monitor. 3. The pages
    // are the core's, by the caller, and begin with the revision.
    unsafe {
        begin_region(region);
        begin_region(vmcs);
        cpu::change_cr0(0, read_msr(CR0_FIXED0));
        let xsave = if has_xsave { CR4_OSXSAVE } else { 0 };
        cpu::change_cr4(0, read_msr(CR4_FIXED0) | xsave);
        let failed: u8;
        let frame = region.frame.0;
        asm!("vmxon [{frame}]", "setbe {failed}", frame = in(reg) &raw const frame,
             failed = out(reg_byte) failed, options(nostack));
        assert_eq!(failed, 0, "VMXON failed");
        invalidate(ALL, PhysAddr(0));
        Ok(Vmcs::load(vmcs.frame))
    }
}

/// Begins a region for the processor.
///
/// # Safety
/// The page is the core's own, which has VMX.
pub(super) unsafe fn begin_region(region: AreaPage) {
    // SAFETY: as promised by the caller.
    unsafe {
        let revision = (read_msr(VMX_BASIC) & BASIC_REVISION) as u32;
        (region.start as *mut u32).write_volatile(revision);
    }
}

/// Invalidates all tagged translations. Returns whether the processor can do so.
pub(super) fn invalidate_tagged() -> bool {
    // SAFETY: every processor with nested paging has the register.
    let has_it = unsafe { read_msr(VMX_EPT_VPID) } & VPID_NEEDED == VPID_NEEDED;
    if has_it {
        let descriptor = [0_u64; 2];
        // SAFETY: the core is in VMX operation, and has this type; at worst translations are looked up
        // again.
        unsafe {
            asm!("invvpid {kind}, [{descriptor}]", kind = in(reg) ALL,
                 descriptor = in(reg) &raw const descriptor, options(nostack));
        }
    }
    has_it
}

/// Leaves VMX operation: an INIT that was blocked resets the core.
pub(super) fn leave() {
    // SAFETY: 1. reading has no effect. 2. CR4.VMXE says that the core is in VMX operation; nobody
    // enters the guest any more.
    unsafe {
        let cr4: u64;
        asm!("mov {}, cr4", out(reg) cr4, options(nomem, nostack, preserves_flags));
        if cr4 & CR4_VMXE != 0 {
            asm!("vmxoff", options(nostack));
            cpu::change_cr4(CR4_VMXE, 0);
        }
    }
}

/// Type of INVEPT: of one nested page table.
pub(super) const ONE: u64 = 1;
/// Type of INVEPT and INVVPID: of all.
const ALL: u64 = 2;

/// Invalidates translations that come from the nested page table.
pub(super) fn invalidate(kind: u64, pointer: PhysAddr) {
    let descriptor = [pointer.0, 0];
    // SAFETY: the core is in VMX operation, and has both types; at worst translations are looked up
    // again.
    unsafe {
        asm!("invept {kind}, [{descriptor}]", kind = in(reg) kind,
             descriptor = in(reg) &raw const descriptor, options(nostack));
    }
}

/// Has exits restore the monitor's present state.
pub(super) fn save(vmcs: &mut Vmcs) {
    let (mut segments, mut gates) = (Table::default(), Table::default());
    let (cr0, cr3, cr4): (u64, u64, u64);
    let [cs, ss, ds, es, tr]: [u16; 5];
    // SAFETY: reading has no effect; the tables are as large as what is stored.
    unsafe {
        asm!("sgdt [{}]", "sidt [{}]", in(reg) &raw mut segments, in(reg) &raw mut gates,
             options(nostack, preserves_flags));
        asm!("mov {}, cr0", "mov {}, cr3", "mov {}, cr4", out(reg) cr0, out(reg) cr3, out(reg) cr4,
             options(nomem, nostack, preserves_flags));
        asm!("mov {:x}, cs", "mov {:x}, ss", "mov {:x}, ds", "mov {:x}, es", "str {:x}",
             out(reg) cs, out(reg) ss, out(reg) ds, out(reg) es, out(reg) tr,
             options(nomem, nostack, preserves_flags));
    }
    // SAFETY: every x86-64 processor has these registers.
    let [pat, efer, gs] =
        unsafe { [Msr::Pat, Msr::Efer, Msr::GsBase].map(|register| read_msr(register as u32)) };
    vmcs.write_all([
        (field::HOST_CR0, cr0),
        (field::HOST_CR3, cr3),
        (field::HOST_CR4, cr4),
        (field::HOST_ES_SELECTOR, es.into()),
        (field::HOST_CS_SELECTOR, cs.into()),
        (field::HOST_SS_SELECTOR, ss.into()),
        (field::HOST_DS_SELECTOR, ds.into()),
        (field::HOST_FS_SELECTOR, 0),
        (field::HOST_GS_SELECTOR, 0),
        (field::HOST_TR_SELECTOR, tr.into()),
        (field::HOST_FS_BASE, 0),
        (field::HOST_GS_BASE, gs),
        (field::HOST_TR_BASE, task_base(segments.base, tr)),
        (field::HOST_GDTR_BASE, segments.base),
        (field::HOST_IDTR_BASE, gates.base),
        (field::HOST_SYSENTER_CS, 0),
        (field::HOST_SYSENTER_ESP, 0),
        (field::HOST_SYSENTER_EIP, 0),
        (field::HOST_PAT, pat),
        (field::HOST_EFER, efer),
    ]);
}

/// Base of a task state segment, from its descriptor.
fn task_base(segments: u64, selector: u16) -> u64 {
    let descriptor = (segments + u64::from(selector)) as *const [u64; 2];
    // SAFETY: the task register was loaded from there.
    let [low, high] = unsafe { descriptor.read_unaligned() };
    low >> 16 & 0xff_ffff | (low >> 56 & 0xff) << 24 | high << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_of_a_task_is_gathered() {
        let table = [0_u64, 0, 0xab00_8912_3456_0067, 0xffff_ffff];
        let base = task_base(table.as_ptr() as u64, 16);
        assert_eq!(base, 0xffff_ffff_ab12_3456);
    }
}
