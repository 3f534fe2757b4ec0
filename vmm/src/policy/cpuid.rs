//! CPUID: what the node's kernel learns of its processor.
//!
//! It is the processor's own answer, since the guest uses the processor itself, without what the monitor
//! keeps: virtualization, enclaves (SGX) and the partitioning of shared caches (RDT). It is also told that
//! there is a hypervisor, by the interface that Linux documents for its own (Documentation/virt/kvm/x86/
//! cpuid.rst), without any of its services: only under a known hypervisor does Linux use x2APIC mode
//! without interrupt remapping (`try_to_enable_x2apic` of arch/x86/kernel/apic/apic.c).
//!
//! This protects nothing, since what it hides is refused where it is used. So it ends with a core's first
//! program: programs execute CPUID often.

use core::arch::x86_64::CpuidResult;

/// First leaf of a hypervisor: its signature, and its last leaf.
const SIGNATURE: u32 = 0x4000_0000;
/// The leaf of its features.
const FEATURES: u32 = 0x4000_0001;
/// First leaf behind it.
const HYPERVISOR_REST: u32 = FEATURES + 1;
/// Last leaf that hypervisors use.
const HYPERVISOR_LAST: u32 = 0x4000_ffff;
/// "KVMKVMKVM".
const KVM: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x4d];
/// `KVM_FEATURE_NOP_IO_DELAY`: the kernel needs no delays by port 0x80.
const NOP_IO_DELAY: u32 = 1 << 1;

/// Control registers of the guest that CPUID reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// CR4.
    pub cr4: u64,
}

const CR4_OSXSAVE: u64 = 1 << 18;
const CR4_PKE: u64 = 1 << 22;

/// Returns the guest's answer to a leaf, from that of the processor.
#[must_use]
pub fn answer(leaf: u32, subleaf: u32, control: Control, real: CpuidResult) -> CpuidResult {
    match leaf {
        1 => CpuidResult {
            // Hypervisor on; VMX, SMX off.
            ecx: with(
                real.ecx & !(1 << 5 | 1 << 6) | 1 << 31,
                27,
                control.cr4 & CR4_OSXSAVE != 0,
            ),
            ..real
        },
        7 if subleaf == 0 => CpuidResult {
            // SGX, RDT-M, RDT-A off; SGX_LC off.
            ebx: real.ebx & !(1 << 2 | 1 << 12 | 1 << 15),
            ecx: with(real.ecx & !(1 << 30), 4, control.cr4 & CR4_PKE != 0),
            ..real
        },
        // RDT monitoring and allocation, SGX, SVM.
        0xf | 0x10 | 0x12 | 0x8000_000a => NOTHING,
        SIGNATURE => CpuidResult {
            eax: FEATURES,
            ebx: KVM[0],
            ecx: KVM[1],
            edx: KVM[2],
        },
        FEATURES => CpuidResult {
            eax: NOP_IO_DELAY,
            ..NOTHING
        },
        HYPERVISOR_REST..=HYPERVISOR_LAST => NOTHING,
        0x8000_0001 => CpuidResult {
            // SVM, SKINIT off.
            ecx: real.ecx & !(1 << 2 | 1 << 12),
            ..real
        },
        0x8000_0008 => CpuidResult {
            // INVLPGB, which flushes translations of all cores of the machine, and is off in guests.
            ebx: real.ebx & !(1 << 3 | 1 << 21),
            ..real
        },
        // Encryption of memory (SME, SEV).
        0x8000_001f => NOTHING,
        _ => real,
    }
}

/// The answer with another APIC id: for a core of a copy, which has the original's.
#[must_use]
pub fn with_apic_id(leaf: u32, answer: CpuidResult, apic_id: u32) -> CpuidResult {
    match leaf {
        1 => CpuidResult {
            ebx: answer.ebx & 0xff_ffff | apic_id << 24,
            ..answer
        },
        // Topology.
        0xb | 0x1f => CpuidResult {
            edx: apic_id,
            ..answer
        },
        0x8000_001e => CpuidResult {
            eax: apic_id,
            ..answer
        },
        _ => answer,
    }
}

const NOTHING: CpuidResult = CpuidResult {
    eax: 0,
    ebx: 0,
    ecx: 0,
    edx: 0,
};

/// Sets or clears a bit.
const fn with(value: u32, bit: u32, set: bool) -> u32 {
    value & !(1 << bit) | (set as u32) << bit
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CpuidResult = CpuidResult {
        eax: u32::MAX,
        ebx: u32::MAX,
        ecx: u32::MAX,
        edx: u32::MAX,
    };

    #[test]
    fn virtualization_is_hidden() {
        let control = Control::default();
        assert_eq!(answer(1, 0, control, ALL).ecx & (1 << 5 | 1 << 6), 0);
        assert_eq!(answer(0x8000_0001, 0, control, ALL).ecx & 1 << 2, 0);
        assert_eq!(answer(0x8000_000a, 0, control, ALL), NOTHING);
        assert_eq!(answer(0x8000_0008, 0, control, ALL).ebx & 1 << 3, 0);
    }

    #[test]
    fn control_registers_are_the_guests() {
        let enabled = Control {
            cr4: CR4_OSXSAVE | CR4_PKE,
        };
        assert_eq!(answer(1, 0, Control::default(), ALL).ecx & 1 << 27, 0);
        assert_ne!(answer(1, 0, enabled, NOTHING).ecx & 1 << 27, 0);
        assert_eq!(answer(7, 0, Control::default(), ALL).ecx & 1 << 4, 0);
        assert_ne!(answer(7, 0, enabled, NOTHING).ecx & 1 << 4, 0);
        // Another subleaf has other bits there.
        assert_eq!(answer(7, 1, Control::default(), ALL), ALL);
    }

    #[test]
    fn leaves_of_the_apic_id_can_have_another() {
        assert_eq!(with_apic_id(1, ALL, 5).ebx, 0x05ff_ffff);
        assert_eq!(with_apic_id(0xb, ALL, 0x123).edx, 0x123);
        assert_eq!(with_apic_id(0x1f, NOTHING, 7).edx, 7);
        assert_eq!(with_apic_id(0x8000_001e, ALL, 7).eax, 7);
        assert_eq!(with_apic_id(7, ALL, 5), ALL);
    }

    #[test]
    fn the_hypervisor_is_one_without_services() {
        let control = Control::default();
        let signature = answer(SIGNATURE, 0, control, ALL);
        let mut text = [0; 12];
        for (bytes, word) in text
            .chunks_mut(4)
            .zip([signature.ebx, signature.ecx, signature.edx])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        assert_eq!(&text, b"KVMKVMKVM\0\0\0");
        assert_eq!(signature.eax, FEATURES);
        assert_eq!(answer(FEATURES, 0, control, ALL).eax, NOP_IO_DELAY);
        assert_eq!(answer(0x4000_0100, 0, control, ALL), NOTHING);
        assert_ne!(answer(1, 0, control, NOTHING).ecx & 1 << 31, 0);
    }
}
