//! Fields of the VMCS that are filled in before the guest runs.

use insula_bare::PhysAddr;

use super::controls::{AtEntry, Controls, Secondary};
use super::permissions::MSR_MAP;
use super::vmcs::{Vmcs, field, segment};
use super::{CR0_NE, CR4_VMXE, host};
use crate::area::Area;
use crate::start_state::{
    CR0_CD, CR0_NW, DR7, EFER_LMA, LOCAL_TABLE, PAT, RFLAGS, Segment, StartState, TABLE,
};

/// Attributes of a present, busy task state of 32 or 64 bits.
const BUSY_TASK: u16 = 0x8b;

/// Tags of translations: of the node's kernel, and of one beside it.
const VPID: u64 = 1;
const SHARED_VPID: u64 = 2;
/// Exceptions that a guest can have delivered again and again by one instruction, which then never
/// ends, and nothing but their exit interrupts it (CVE-2015-5307, CVE-2015-8104).
const ENDLESS_EXCEPTIONS: u64 = 1 << 1 | 1 << 17;

/// Fills in what stays, of a guest that the monitor confines.
pub(super) fn prepare(vmcs: &mut Vmcs, controls: &Controls, area: Area, nested: PhysAddr) {
    vmcs.write_all([
        (field::EXCEPTION_BITMAP, ENDLESS_EXCEPTIONS),
        (field::MSR_BITMAPS, area.physical(MSR_MAP.address()).0),
        (field::TSC_OFFSET, 0),
        (field::EPT_POINTER, nested.0),
        (field::VPID, VPID),
    ]);
    if controls.has(Secondary::ENCLS) {
        vmcs.write(field::ENCLS_EXITING_BITMAP, u64::MAX);
    }
    prepare_any(vmcs, controls);
}

/// The same of a lightweight kernel that shares the core, with a page of zeros as its permission map.
pub(super) fn prepare_shared(vmcs: &mut Vmcs, controls: &Controls, zeros: PhysAddr) {
    vmcs.write_all([
        (field::EXCEPTION_BITMAP, 0),
        (field::MSR_BITMAPS, zeros.0),
        (field::VPID, SHARED_VPID),
        (field::ENTRY_EVENT, 0),
        (field::GUEST_INTERRUPTIBILITY, 0),
        (field::GUEST_ACTIVITY, 0),
        (field::GUEST_PENDING_DEBUG, 0),
    ]);
    prepare_any(vmcs, controls);
}

fn prepare_any(vmcs: &mut Vmcs, controls: &Controls) {
    vmcs.write_all([
        (field::PIN_CONTROLS, controls.pin.into()),
        (field::PRIMARY_CONTROLS, controls.primary.into()),
        (field::SECONDARY_CONTROLS, controls.secondary.into()),
        (field::EXIT_CONTROLS, controls.exit.into()),
        (field::PAGE_FAULT_MASK, 0),
        (field::PAGE_FAULT_MATCH, 0),
        (field::CR3_TARGET_COUNT, 0),
        (field::EXIT_MSR_STORE_COUNT, 0),
        (field::EXIT_MSR_LOAD_COUNT, 0),
        (field::ENTRY_MSR_LOAD_COUNT, 0),
        (field::PREEMPTION_TIMER, 0),
        (field::VMCS_LINK_POINTER, u64::MAX),
        (field::CR0_MASK, CR0_NE),
        (field::CR4_MASK, CR4_VMXE),
    ]);
    if controls.has(Secondary::XSAVES) {
        vmcs.write(field::XSS_EXITING_BITMAP, 0);
    }
    host::save(vmcs);
}

/// Fills in the state in which the guest's core starts.
pub(super) fn start(vmcs: &mut Vmcs, controls: &Controls, start: &StartState) {
    set_segment(vmcs, segment::CS, start.code);
    for data in [
        segment::ES,
        segment::SS,
        segment::DS,
        segment::FS,
        segment::GS,
    ] {
        set_segment(vmcs, data, start.data);
    }
    set_segment(vmcs, segment::LDTR, LOCAL_TABLE);
    set_segment(vmcs, segment::TR, task(start));
    let is_64 = match start.efer & EFER_LMA {
        0 => AtEntry::empty(),
        _ => AtEntry::GUEST_64,
    };
    vmcs.write_all([
        (
            field::ENTRY_CONTROLS,
            (controls.entry | is_64.bits()).into(),
        ),
        (field::GUEST_GDTR_BASE, TABLE.base),
        (field::GUEST_GDTR_LIMIT, TABLE.limit.into()),
        (field::GUEST_IDTR_BASE, TABLE.base),
        (field::GUEST_IDTR_LIMIT, TABLE.limit.into()),
        // Entries leave the processor's caches as they are.
        (field::GUEST_CR0, start.cr0 & !(CR0_CD | CR0_NW) | CR0_NE),
        (field::CR0_SHADOW, start.cr0),
        (field::GUEST_CR3, start.cr3),
        (field::GUEST_CR4, start.cr4 | CR4_VMXE),
        (field::CR4_SHADOW, start.cr4),
        (field::GUEST_EFER, start.efer),
        (field::GUEST_PAT, PAT),
        (field::GUEST_RIP, start.rip),
        (field::GUEST_RSP, 0),
        (field::GUEST_RFLAGS, RFLAGS),
        (field::GUEST_DR7, DR7),
        (field::GUEST_DEBUGCTL, 0),
        (field::GUEST_SYSENTER_CS, 0),
        (field::GUEST_SYSENTER_ESP, 0),
        (field::GUEST_SYSENTER_EIP, 0),
    ]);
}

fn set_segment(vmcs: &mut Vmcs, register: u32, segment: Segment) {
    vmcs.write_all([
        (field::GUEST_SELECTORS + register, segment.selector.into()),
        (field::GUEST_SEGMENT_LIMITS + register, segment.limit.into()),
        (
            field::GUEST_SEGMENT_ATTRIBUTES + register,
            attributes(segment.attributes),
        ),
        (field::GUEST_SEGMENT_BASES + register, segment.base),
    ]);
}

/// The task register: never with a task state of 16 bits, with which 64-bit mode cannot be entered (Intel
/// SDM volume 3, 10.8.5 "Initializing IA-32e Mode").
const fn task(start: &StartState) -> Segment {
    Segment {
        attributes: BUSY_TASK,
        ..start.task
    }
}

/// A segment's attributes as the VMCS has them: bits 40 to 47 and, from bit 12 on, 52 to 55 of its
/// descriptor.
const fn attributes(attributes: u16) -> u64 {
    (attributes & 0xff) as u64 | ((attributes >> 8) as u64) << 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::{RESET_RIP, RESET_SELECTOR};
    use crate::start_state::EFER_LME;

    const CR0_PG: u64 = 1 << 31;

    #[test]
    fn attributes_are_spread() {
        assert_eq!(attributes(0xa9b), 0xa09b);
        assert_eq!(attributes(0x083), 0x83);
    }

    /// What an entry checks of the segments that a core starts with (Intel SDM volume 3, 27.3.1.2).
    #[test]
    fn start_states_can_be_entered() {
        for start in [
            StartState::reset(RESET_SELECTOR, RESET_RIP),
            StartState::reset(0x9a00, 0),
            StartState::kernel(0x100_0200, 0x20_0000),
        ] {
            let is_64 = start.efer & EFER_LMA != 0;
            let code = attributes(start.code.attributes);
            assert_eq!(code & 0xf, 0xb, "accessed, readable code");
            for used in [code, attributes(start.data.attributes)] {
                assert_eq!(used & 0x90, 0x90, "present, of code or data");
                assert_eq!(used & 0x60, 0, "of the kernel");
                let is_large = used & 1 << 15 != 0;
                assert_eq!(is_large, is_64, "a limit in pages");
            }
            assert_eq!(attributes(start.data.attributes) & 0xf, 3);
            assert_eq!(code >> 13 & 3, u64::from(is_64), "either 64-bit or 32-bit");
            assert_eq!(attributes(task(&start).attributes), 0x8b);
            assert_eq!(start.efer & EFER_LME != 0, is_64);
            assert_eq!(start.cr0 & CR0_PG != 0, is_64);
            assert_eq!(attributes(LOCAL_TABLE.attributes), 0x82);
        }
    }
}
