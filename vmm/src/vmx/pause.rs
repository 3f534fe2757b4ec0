//! What a guest was doing, as far as a reset of it, or another core, changes that: fields of its VMCS, and
//! registers.

use core::arch::asm;

use insula_bare::cpu;

use super::controls::{AtEntry, Controls, Primary};
use super::vmcs::{Vmcs, field, segment};
use super::{CR0_NE, CR4_VMXE, Registers};
use crate::policy::saved;
use crate::state;

/// Arrays of fields with an entry for each segment register.
const SEGMENT_FIELDS: [u32; 4] = [
    field::GUEST_SELECTORS,
    field::GUEST_SEGMENT_LIMITS,
    field::GUEST_SEGMENT_ATTRIBUTES,
    field::GUEST_SEGMENT_BASES,
];
const SEGMENTS: [u32; 8] = [
    segment::ES,
    segment::CS,
    segment::SS,
    segment::DS,
    segment::FS,
    segment::GS,
    segment::LDTR,
    segment::TR,
];
/// All others. The controls of entries say whether the guest is in 64-bit mode, the primary ones
/// whether it exits when it can take an NMI.
const FIELDS: [u32; 27] = [
    field::PRIMARY_CONTROLS,
    field::ENTRY_CONTROLS,
    field::ENTRY_EVENT,
    field::ENTRY_ERROR_CODE,
    field::ENTRY_INSTRUCTION_LENGTH,
    field::GUEST_INTERRUPTIBILITY,
    field::GUEST_ACTIVITY,
    field::GUEST_PENDING_DEBUG,
    field::GUEST_GDTR_BASE,
    field::GUEST_GDTR_LIMIT,
    field::GUEST_IDTR_BASE,
    field::GUEST_IDTR_LIMIT,
    field::GUEST_CR0,
    field::CR0_SHADOW,
    field::GUEST_CR3,
    field::GUEST_CR4,
    field::CR4_SHADOW,
    field::GUEST_EFER,
    field::GUEST_PAT,
    field::GUEST_RIP,
    field::GUEST_RSP,
    field::GUEST_RFLAGS,
    field::GUEST_DR7,
    field::GUEST_DEBUGCTL,
    field::GUEST_SYSENTER_CS,
    field::GUEST_SYSENTER_ESP,
    field::GUEST_SYSENTER_EIP,
];

/// Registers that no entry or exit switches, so that they are the guest's all the time: by which system
/// calls enter the kernel, and the kernel's own base of GS.
pub(super) const MSRS: [u32; 5] = [
    0xc000_0081,
    0xc000_0082,
    0xc000_0083,
    0xc000_0084,
    0xc000_0102,
];
/// Activity: halted. Beyond it are states that the base could not end.
const HALTED: u64 = 1;

/// What a paused guest was doing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Paused {
    registers: Registers,
    segments: [[u64; SEGMENTS.len()]; SEGMENT_FIELDS.len()],
    fields: [u64; FIELDS.len()],
    /// Needed by another core only: this one's stay.
    msrs: [u64; MSRS.len()],
    cr2: u64,
    dr6: u64,
}

impl Paused {
    /// Saves it.
    pub(super) fn save(vmcs: &Vmcs, registers: Registers) -> Self {
        let of_segment = |array: u32| SEGMENTS.map(|segment| vmcs.read(array + segment));
        let (cr2, dr6): (u64, u64);
        // SAFETY: reading changes nothing.
        unsafe {
            asm!("mov {}, cr2", "mov {}, dr6", out(reg) cr2, out(reg) dr6,
                 options(nomem, nostack, preserves_flags));
        }
        Self {
            registers,
            segments: SEGMENT_FIELDS.map(of_segment),
            fields: FIELDS.map(|field| vmcs.read(field)),
            // SAFETY: each processor with 64-bit mode has them; reading changes nothing.
            msrs: MSRS.map(|register| unsafe { cpu::read_msr(register) }),
            cr2,
            dr6,
        }
    }

    /// Restores it, and returns the registers.
    pub(super) fn restore(self, vmcs: &mut Vmcs, controls: &Controls) -> Registers {
        for (array, values) in SEGMENT_FIELDS.into_iter().zip(self.segments) {
            for (segment, value) in SEGMENTS.into_iter().zip(values) {
                vmcs.write(array + segment, value);
            }
        }
        for (field, value) in FIELDS.into_iter().zip(self.fields) {
            vmcs.write(field, allowed(field, value, controls));
        }
        let takes = state::takes();
        for (register, value) in MSRS.into_iter().zip(self.msrs) {
            // SAFETY: the monitor uses none of them, and they take the value.
            unsafe { cpu::write_msr(register, takes.msr(register, value)) }
        }
        let dr6 = saved::low(self.dr6);
        // SAFETY: the monitor takes no page faults, and has no breakpoints; the register takes the value.
        unsafe {
            asm!("mov cr2, {}", "mov dr6, {}", in(reg) self.cr2, in(reg) dr6,
                 options(nomem, nostack, preserves_flags));
        }
        self.registers
    }
}

/// What is written to a field: it decides only about what changes while a guest runs, as a state may come
/// from a file. What the processor does not take fails the next entry, which ends the node.
fn allowed(field: u32, value: u64, controls: &Controls) -> u64 {
    let only = |fixed: u32, changing: u32| u64::from(fixed) | value & u64::from(changing);
    match field {
        field::PRIMARY_CONTROLS => only(controls.primary, Primary::NMI_WINDOW.bits()),
        field::ENTRY_CONTROLS => only(controls.entry, AtEntry::GUEST_64.bits()),
        field::GUEST_ACTIVITY if value > HALTED => 0,
        field::GUEST_CR0 => value | CR0_NE,
        field::GUEST_CR4 => value | CR4_VMXE,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_changes_no_control_that_a_guest_keeps() {
        let controls = Controls {
            pin: 0x3e,
            primary: 0x9500_617a,
            secondary: 0,
            exit: 0,
            entry: 0xd1ff,
        };
        let allowed = |field, value| allowed(field, value, &controls);
        assert_eq!(allowed(field::PRIMARY_CONTROLS, 0), 0x9500_617a);
        assert_eq!(allowed(field::PRIMARY_CONTROLS, u64::MAX), 0x9540_617a);
        assert_eq!(allowed(field::ENTRY_CONTROLS, 0), 0xd1ff);
        assert_eq!(allowed(field::ENTRY_CONTROLS, u64::MAX), 0xd3ff);
        for (activity, kept) in [(0, 0), (1, 1), (2, 0), (3, 0)] {
            assert_eq!(allowed(field::GUEST_ACTIVITY, activity), kept);
        }
        assert_eq!(allowed(field::GUEST_CR4, 0x20), 0x20 | CR4_VMXE);
        assert_eq!(allowed(field::GUEST_RIP, 7), 7);
    }
}
