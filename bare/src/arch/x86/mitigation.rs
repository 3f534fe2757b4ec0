//! What keeps one program, and the kernel, from another that looks at what they leave in a core's
//! buffers and predictors.
//!
//! Sources: Intel, "Microarchitectural Data Sampling", "Register File Data Sampling" and "Indirect
//! Branch Predictor Barrier"; AMD, "Transient Scheduler Attacks" and "Indirect Branch Control Extension".

use core::sync::atomic::{AtomicBool, Ordering};

use super::cpu::{cpuid, read_msr, write_msr};

/// `IA32_ARCH_CAPABILITIES` and `IA32_PRED_CMD`.
const CAPABILITIES: u32 = 0x10a;
const PREDICTOR_COMMAND: u32 = 0x49;
/// Of the latter: `IBPB`.
const BARRIER: u64 = 1;

/// Whether VERW clears buffers of this processor in which a program could find data: then it is the
/// last thing that is done before a program is entered. One byte, read by trap.S.
#[cfg_attr(target_os = "none", unsafe(export_name = "bare_clears_buffers"))]
static CLEARS_BUFFERS: AtomicBool = AtomicBool::new(false);
static HAS_BARRIER: AtomicBool = AtomicBool::new(false);

/// What CPUID and `IA32_ARCH_CAPABILITIES` say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Processor {
    /// Leaf 7: EBX, EDX.
    features: (u32, u32),
    /// 0 if the processor does not have the register.
    capabilities: u64,
    /// Leaf 0x8000_0008, EBX, and leaf 0x8000_0021, EAX; 0 where there is no such leaf.
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
            // SAFETY: CPUID says that it is there.
            _ => unsafe { read_msr(CAPABILITIES) },
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

    /// Whether VERW clears buffers of this processor in which data may be found.
    fn clears_buffers(&self) -> bool {
        let (ebx, edx) = self.features;
        let says = |bit: u32| self.capabilities & 1 << bit != 0;
        let has_transactions = ebx & 1 << 11 != 0;
        // MDS_NO; SBDR_SSDP_NO, FBSDP_NO, PSDP_NO; RFDS_NO; TAA_NO.
        let is_immune = [5, 13, 14, 15, 27].into_iter().all(says) && (says(8) || !has_transactions);
        // MD_CLEAR, FB_CLEAR, RFDS_CLEAR; of AMD VERW_CLEAR.
        let can = edx & 1 << 10 != 0 || says(17) || says(28);
        can && !is_immune || self.amd.1 & 1 << 5 != 0
    }

    /// Whether it can be told to predict nothing by what it has learned.
    fn has_barrier(&self) -> bool {
        self.features.1 & 1 << 26 != 0 || self.amd.0 & 1 << 12 != 0
    }
}

/// Finds out what there is to do. Called by each core, of which all are alike.
pub(super) fn prepare() {
    let processor = Processor::this();
    CLEARS_BUFFERS.store(processor.clears_buffers(), Ordering::Relaxed);
    HAS_BARRIER.store(processor.has_barrier(), Ordering::Relaxed);
}

/// Between two programs: the core predicts no branch of the next by what it has learned of the last.
pub fn separate_programs() {
    if HAS_BARRIER.load(Ordering::Relaxed) {
        // SAFETY: CPUID says that it is there; a command, nothing else changes.
        unsafe { write_msr(PREDICTOR_COMMAND, BARRIER) }
    }
}

#[cfg(test)]
mod tests {
    use super::Processor;

    #[test]
    fn buffers_are_cleared_where_data_may_be_found_in_them() {
        let old = Processor::default();
        assert!(!old.clears_buffers() && !old.has_barrier());
        let skylake = Processor {
            features: (1 << 11, 1 << 10 | 1 << 26),
            ..old
        };
        assert!(skylake.clears_buffers() && skylake.has_barrier());
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
        let told_of_registers_only = Processor {
            capabilities: none & !(1 << 27) | 1 << 28,
            ..immune
        };
        assert!(told_of_registers_only.clears_buffers());
        let zen3 = Processor {
            amd: (1 << 12, 1 << 5),
            ..old
        };
        assert!(zen3.clears_buffers() && zen3.has_barrier());
    }
}
