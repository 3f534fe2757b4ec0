//! What a guest was doing, as far as a reset of it changes that: fields of its VMCS, and registers.

use super::Registers;
use super::vmcs::{Vmcs, field, segment};

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

/// What a paused guest was doing.
#[derive(Clone, Copy, Debug)]
pub struct Paused {
    registers: Registers,
    segments: [[u64; SEGMENTS.len()]; SEGMENT_FIELDS.len()],
    fields: [u64; FIELDS.len()],
}

impl Paused {
    /// Saves it.
    pub(super) fn save(vmcs: &Vmcs, registers: Registers) -> Self {
        let of_segment = |array: u32| SEGMENTS.map(|segment| vmcs.read(array + segment));
        Self {
            registers,
            segments: SEGMENT_FIELDS.map(of_segment),
            fields: FIELDS.map(|field| vmcs.read(field)),
        }
    }

    /// Restores it, and returns the registers.
    pub(super) fn restore(self, vmcs: &mut Vmcs) -> Registers {
        for (array, values) in SEGMENT_FIELDS.into_iter().zip(self.segments) {
            for (segment, value) in SEGMENTS.into_iter().zip(values) {
                vmcs.write(array + segment, value);
            }
        }
        for (field, value) in FIELDS.into_iter().zip(self.fields) {
            vmcs.write(field, value);
        }
        self.registers
    }
}
