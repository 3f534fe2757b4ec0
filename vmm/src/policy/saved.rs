//! Saved registers, as far as a core takes them: a state may come from a file, and what a register does
//! not take faults, in the monitor as in a guest. What a core has saved itself stays as it is.
//!
//! What an entry to the guest checks is not checked here: it then fails, which ends the guest alone.
//!
//! Source: Intel SDM volume 4, chapter 2, and volume 3, chapters 11, 18 and 19; volume 1, 13.4.2 "XSAVE
//! Header" and 10.2.3 "MXCSR Control and Status Register".

/// Bits of IA32_SPEC_CTRL, by the features that it needs.
const IBRS: u64 = 1 << 0;
const STIBP: u64 = 1 << 1;
const SSBD: u64 = 1 << 2;
const IPRED: u64 = 3 << 3;
const RRSBA: u64 = 3 << 5;
const PSFD: u64 = 1 << 7;
const BHI: u64 = 1 << 10;

/// IA32_U_CET and IA32_S_CET: shadow stacks; indirect branches, their state, and a bitmap's address.
const SHADOW_STACKS: u64 = 3;
const BRANCHES: u64 = 0xf << 2 | SUPPRESSED | WAITS_FOR_END;
const SUPPRESSED: u64 = 1 << 10;
const WAITS_FOR_END: u64 = 1 << 11;
const PAGE: u64 = 0xfff;

/// The spurious interrupt vector register: vector and enable; suppression of broadcasts.
const SPURIOUS: u64 = 0x1ff;
const SUPPRESS_BROADCASTS: u64 = 1 << 12;

/// In an XSAVE area: MXCSR, and the header with the states that it has.
const MXCSR: usize = 24;
const HEADER: usize = 512;
/// Bytes of its legacy part and header.
pub const HEAD_SIZE: usize = 576;

/// What the registers of a processor take.
#[derive(Clone, Copy, Debug)]
pub struct Takes {
    /// Bits of a linear address.
    pub address_bits: u32,
    /// CPUID leaf 7, EDX of subleafs 0 and 2.
    pub features: u32,
    /// The other one.
    pub speculation_features: u32,
    /// IA32_XSS.
    pub supervisor_states: u64,
    /// Indirect branch tracking.
    pub branch_tracking: bool,
    /// The local APIC can suppress broadcasts of ends of interrupts.
    pub broadcast_suppression: bool,
}

impl Takes {
    /// A value that the model-specific register takes: the same, or one without the bits that fault.
    #[must_use]
    pub const fn msr(&self, register: u32, value: u64) -> u64 {
        match register {
            0x48 => value & self.speculation(),
            0xda0 => value & self.supervisor_states,
            0x6a0 | 0x6a2 => self.control_flow(value),
            0x6a4..=0x6a7 => self.canonical(value) & !7,
            0x6a8 | 0xc000_0082 | 0xc000_0083 | 0xc000_0100..=0xc000_0102 => self.canonical(value),
            // SYSCALL's mask of flags, and the core's number.
            0xc000_0084 | 0xc000_0103 => low(value),
            // Of the local APIC: spurious interrupts, priority, divisor and counter of the timer.
            0x80f if self.broadcast_suppression => value & (SPURIOUS | SUPPRESS_BROADCASTS),
            0x80f => value & SPURIOUS,
            0x808 => value & 0xff,
            0x83e => value & 0xb,
            0x838 => low(value),
            _ => value,
        }
    }

    const fn speculation(&self) -> u64 {
        const FEATURES: [(u32, u64); 3] = [(26, IBRS), (27, STIBP), (31, SSBD)];
        const MORE: [(u32, u64); 4] = [(0, PSFD), (1, IPRED), (2, RRSBA), (4, BHI)];
        bits_of(self.features, &FEATURES) | bits_of(self.speculation_features, &MORE)
    }

    const fn control_flow(&self, value: u64) -> u64 {
        if !self.branch_tracking {
            return value & SHADOW_STACKS;
        }
        let value = self.canonical(value) & (SHADOW_STACKS | BRANCHES | !PAGE);
        match value & WAITS_FOR_END {
            0 => value,
            _ => value & !SUPPRESSED,
        }
    }

    /// The address with the bits above those of an address equal to its highest one.
    const fn canonical(&self, address: u64) -> u64 {
        let unused = u64::BITS - self.address_bits;
        ((address << unused) as i64 >> unused) as u64
    }
}

/// Bits of a register that these features bring.
const fn bits_of(features: u32, known: &[(u32, u64)]) -> u64 {
    let (mut bits, mut next) = (0, 0);
    while next < known.len() {
        let (feature, brought) = known[next];
        if features & 1 << feature != 0 {
            bits |= brought;
        }
        next += 1;
    }
    bits
}

/// A value of which the upper half is reserved, as in DR6 and DR7.
#[must_use]
pub const fn low(value: u64) -> u64 {
    value & 0xffff_ffff
}

/// Makes the head of an XSAVE area one that XRSTOR takes, when these states are enabled, and FXRSTOR, when
/// the processor has these bits of MXCSR.
pub fn sanitize_extended(head: &mut [u8; HEAD_SIZE], enabled: u64, mxcsr_mask: u32) {
    let present = u64::from_le_bytes(*head[HEADER..].first_chunk().unwrap_or(&[0; 8])) & enabled;
    head[HEADER..].fill(0);
    head[HEADER..HEADER + 8].copy_from_slice(&present.to_le_bytes());
    let mxcsr = u32::from_le_bytes(*head[MXCSR..].first_chunk().unwrap_or(&[0; 4])) & mxcsr_mask;
    head[MXCSR..MXCSR + 4].copy_from_slice(&mxcsr.to_le_bytes());
}

/// The bits of MXCSR that the processor has, by the field that FXSAVE writes.
#[must_use]
pub const fn mxcsr_mask(saved: u32) -> u32 {
    const OLDEST: u32 = 0xffbf;
    match saved {
        0 => OLDEST,
        mask => mask,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Takes = Takes {
        address_bits: 57,
        features: u32::MAX,
        speculation_features: u32::MAX,
        supervisor_states: 0x1fd00,
        branch_tracking: true,
        broadcast_suppression: true,
    };
    const LEAST: Takes = Takes {
        address_bits: 48,
        features: 1 << 26,
        speculation_features: 0,
        supervisor_states: 0,
        branch_tracking: false,
        broadcast_suppression: false,
    };

    #[test]
    fn what_kernels_write_stays() {
        for (register, value) in [
            (0x48, IBRS | STIBP | SSBD | BHI),
            (0xda0, 0x1800),
            (0x6a0, 0x3),
            (0x6a2, 0x1c),
            (0x6a7, 0x7fff_ffff_fff8),
            (0xc000_0081, 0x0023_0010_0000_0000),
            (0xc000_0082, 0xffff_ffff_81e0_0080),
            (0xc000_0084, 0x25_7fd5),
            (0xc000_0102, 0x7f00_1234_5678),
            (0xc000_0103, 0x1003),
            (0x80f, 0x1ff),
            (0x838, 0xffff_ffff),
        ] {
            assert_eq!(ALL.msr(register, value), value, "{register:#x}");
        }
        assert_eq!(LEAST.msr(0x48, IBRS), IBRS);
    }

    #[test]
    fn what_would_fault_is_left_out() {
        let all = u64::MAX;
        for register in [0xc000_0082, 0xc000_0083, 0xc000_0102, 0x6a8] {
            let half_way = 1 << 60 | 0x1234_5678;
            assert_eq!(LEAST.msr(register, half_way), 0x1234_5678, "{register:#x}");
            assert_eq!(LEAST.msr(register, 1 << 47), 0xffff_8000_0000_0000);
            assert_eq!(ALL.msr(register, 1 << 47), 1 << 47);
        }
        assert_eq!(LEAST.msr(0x48, all), IBRS);
        assert_eq!(LEAST.msr(0xda0, all), 0);
        assert_eq!(LEAST.msr(0x6a2, all), SHADOW_STACKS);
        assert_eq!(ALL.msr(0x6a2, all) & (0xf << 6 | SUPPRESSED), 0);
        assert_eq!(ALL.msr(0x6a4, all) & 7, 0);
        for register in [0xc000_0084, 0xc000_0103, 0x838] {
            assert_eq!(ALL.msr(register, all), 0xffff_ffff);
        }
        assert_eq!(LEAST.msr(0x80f, all), 0x1ff);
        assert_eq!((ALL.msr(0x808, all), ALL.msr(0x83e, all)), (0xff, 0xb));
        assert_eq!(low(all), 0xffff_ffff);
    }

    proptest! {
        #[test]
        fn an_address_is_canonical_and_stays_so(address in any::<u64>(), is_large in any::<bool>()) {
            let takes = if is_large { ALL } else { LEAST };
            let once = takes.msr(0xc000_0082, address);
            let above = once as i64 >> (takes.address_bits - 1);
            prop_assert!(above == 0 || above == -1);
            prop_assert_eq!(takes.msr(0xc000_0082, once), once);
        }
    }

    #[test]
    fn an_extended_state_has_only_what_is_enabled() {
        let mut head = [0xff; HEAD_SIZE];
        sanitize_extended(&mut head, 7, mxcsr_mask(0));
        assert_eq!(head[HEADER..HEADER + 8], 7_u64.to_le_bytes());
        assert!(head[HEADER + 8..].iter().all(|byte| *byte == 0));
        assert_eq!(head[MXCSR..MXCSR + 4], 0xffbf_u32.to_le_bytes());
        assert!(head[..MXCSR].iter().all(|byte| *byte == 0xff));
        assert_eq!(mxcsr_mask(0x2_ffff), 0x2_ffff);
    }
}
