//! Mitigations of side channels: programs must not read what others, or the kernel, leave in a
//! core's buffers and branch predictors.
//!
//! Sources: Intel, "Microarchitectural Data Sampling", "Register File Data Sampling" and "Indirect
//! Branch Predictor Barrier"; AMD, "Transient Scheduler Attacks" and "Indirect Branch Control
//! Extension".

use core::sync::atomic::{AtomicBool, Ordering};

use super::cpu::{cpuid, read_msr, write_msr};

/// `IA32_ARCH_CAPABILITIES` and `IA32_PRED_CMD`.
const ARCH_CAPABILITIES: u32 = 0x10a;
const PRED_CMD: u32 = 0x49;
/// IBPB, a bit of `IA32_PRED_CMD`.
const IBPB: u64 = 1;

/// Whether VERW has to clear CPU buffers: then it is executed last before a program is entered. One
/// byte, read by trap.S.
#[cfg_attr(target_os = "none", unsafe(export_name = "bare_clears_buffers"))]
static CLEARS_BUFFERS: AtomicBool = AtomicBool::new(false);
static HAS_IBPB: AtomicBool = AtomicBool::new(false);

/// CPUID and `IA32_ARCH_CAPABILITIES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Processor {
    /// Leaf 7: EBX, EDX.
    features: (u32, u32),
    /// 0 if the processor lacks the register.
    capabilities: u64,
    /// Leaf 0x8000_0008, EBX, and leaf 0x8000_0021, EAX; 0 if there is no such leaf.
    amd: (u32, u32),
}

impl Processor {
    fn this() -> Self {
        let leaf = cpuid(7, 0);
        let extended = |number: u32| match cpuid(0x8000_0000, 0).eax >= number {
            true => Some(cpuid(number, 0)),
            false => None,
        };
        let capabilities = match leaf.edx & 1 << 29 {
            0 => 0,
            // SAFETY: CPUID says that the register exists.
            _ => unsafe { read_msr(ARCH_CAPABILITIES) },
        };
        Self {
            features: (leaf.ebx, leaf.edx),
            capabilities,
            amd: (
                extended(0x8000_0008).map_or(0, |leaf| leaf.ebx),
                extended(0x8000_0021).map_or(0, |leaf| leaf.eax),
            ),
        }
    }

    /// Whether VERW has to clear buffers of this processor.
    fn clears_buffers(&self) -> bool {
        let (ebx, edx) = self.features;
        let is_set = |bit: u32| self.capabilities & 1 << bit != 0;
        let has_transactions = ebx & 1 << 11 != 0;
        // MDS_NO; SBDR_SSDP_NO, FBSDP_NO, PSDP_NO; RFDS_NO; TAA_NO.
        let is_immune =
            [5, 13, 14, 15, 27].into_iter().all(is_set) && (is_set(8) || !has_transactions);
        // MD_CLEAR, FB_CLEAR, RFDS_CLEAR; AMD's VERW_CLEAR below.
        let has_verw_clear = edx & 1 << 10 != 0 || is_set(17) || is_set(28);
        has_verw_clear && !is_immune || self.amd.1 & 1 << 5 != 0
    }

    /// Whether the processor has the indirect branch predictor barrier.
    fn has_ibpb(&self) -> bool {
        self.features.1 & 1 << 26 != 0 || self.amd.0 & 1 << 12 != 0
    }
}

/// Detects what is needed. Each core calls it; all cores are alike.
pub fn detect() {
    let processor = Processor::this();
    CLEARS_BUFFERS.store(processor.clears_buffers(), Ordering::Relaxed);
    HAS_IBPB.store(processor.has_ibpb(), Ordering::Relaxed);
}

/// Issues the predictor barrier between two programs: no branch of the next is predicted by what
/// the last one trained.
pub fn flush_branch_predictors() {
    if HAS_IBPB.load(Ordering::Relaxed) {
        // SAFETY: CPUID says that the register exists; the command changes nothing else.
        unsafe { write_msr(PRED_CMD, IBPB) }
    }
}

#[cfg(test)]
mod tests {
    use super::Processor;

    #[test]
    fn buffers_are_cleared_on_affected_processors() {
        let old = Processor::default();
        assert!(!old.clears_buffers() && !old.has_ibpb());
        let skylake = Processor {
            features: (1 << 11, 1 << 10 | 1 << 26),
            ..old
        };
        assert!(skylake.clears_buffers() && skylake.has_ibpb());
        let none = [5, 13, 14, 15, 27].map(|bit| 1_u64 << bit).iter().sum();
        let immune = Processor {
            features: (0, 1 << 10 | 1 << 29),
            capabilities: none,
            ..old
        };
        assert!(!immune.clears_buffers());
        let with_transactions = Processor {
            features: (1 << 11, 1 << 10 | 1 << 29),
            ..immune
        };
        assert!(with_transactions.clears_buffers());
        let registers_only = Processor {
            capabilities: none & !(1 << 27) | 1 << 28,
            ..immune
        };
        assert!(registers_only.clears_buffers());
        let zen3 = Processor {
            amd: (1 << 12, 1 << 5),
            ..old
        };
        assert!(zen3.clears_buffers() && zen3.has_ibpb());
    }
}
