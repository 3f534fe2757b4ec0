//! Machine checks: hardware errors reported by an exception (Intel SDM volume 3, chapter 17; AMD
//! APM volume 2, chapter 9).
//!
//! Many are broadcast to every core of the machine, whichever kernel they concern, and a core with
//! `CR4.MCE` clear then shuts the machine down with all its kernels. So every core sets that bit,
//! and goes on after an error that is not its own.

use super::cpu::{cpuid, read_msr, write_msr};

/// Vector of the exception.
pub(super) const VECTOR: u64 = 18;

/// CR4: machine checks raise exceptions.
const CR4_MCE: u64 = 1 << 6;
/// CPUID leaf 1, EDX: machine checks, and the banks of registers that describe them.
const MCE: u32 = 1 << 7;
const MCA: u32 = 1 << 14;

/// Number of banks, in the low eight bits.
const MCG_CAP: u32 = 0x179;
/// Status of the current machine check.
const MCG_STATUS: u32 = 0x17a;
/// RIPV: the interrupted program can be resumed.
const RESTART_IP_VALID: u64 = 1 << 0;
/// Status of bank 0; each further bank's is four registers on.
const MC0_STATUS: u32 = 0x401;

/// Bank status: valid (VAL), uncorrected (UC), reporting enabled (EN).
const UNCORRECTED: u64 = 1 << 63 | 1 << 61 | 1 << 60;
/// Bank status: the core's context is corrupt (PCC); or, on Intel, recovery action is required (AR)
/// and, on AMD, the program's context is corrupt (TCC).
const UNRECOVERABLE: u64 = 1 << 57 | 1 << 55;

/// Returns the CR4 bit that enables machine checks, if the core has them.
pub(super) fn cr4() -> u64 {
    match cpuid(1, 0).edx & MCE {
        0 => 0,
        _ => CR4_MCE,
    }
}

/// Whether a bank reports an error after which its core cannot go on.
fn is_fatal(bank_status: u64) -> bool {
    bank_status & UNCORRECTED == UNCORRECTED && bank_status & UNRECOVERABLE != 0
}

/// Whether a core can go on after a machine check with this status and these banks.
fn is_recoverable(status: u64, mut banks: impl Iterator<Item = u64>) -> bool {
    status & RESTART_IP_VALID != 0 && !banks.any(is_fatal)
}

/// Handles the machine check of the calling core. The banks are left for the kernel that owns the
/// core next.
///
/// # Panics
/// If the core cannot go on.
pub(super) fn handle() {
    if cpuid(1, 0).edx & MCA == 0 {
        panic!("a machine check, and this processor gives no details");
    }
    // SAFETY: processors with MCA have these registers, and as many banks as they say; reads have
    // no effect.
    let (status, count) = unsafe { (read_msr(MCG_STATUS), read_msr(MCG_CAP) & 0xff) };
    let banks = (0..count as u32).map(|bank| {
        // SAFETY: as above.
        unsafe { read_msr(MC0_STATUS + 4 * bank) }
    });
    if !is_recoverable(status, banks.clone()) {
        let fatal = banks.enumerate().find(|&(_, bank)| is_fatal(bank));
        panic!("machine check: uncorrected hardware error, status {status:#x}, bank {fatal:x?}");
    }
    // SAFETY: the register exists. Clearing it ends the machine check; another one before that
    // would shut the machine down.
    unsafe { write_msr(MCG_STATUS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: u64 = 1 << 63;
    const UC: u64 = 1 << 61;
    const ENABLED: u64 = 1 << 60;
    const CONTEXT_CORRUPT: u64 = 1 << 57;
    const ACTION_REQUIRED: u64 = 1 << 55;

    #[test]
    fn errors_of_other_cores_are_survived() {
        let none = [0, 0, 0];
        assert!(is_recoverable(RESTART_IP_VALID, none.into_iter()));
        // Corrected, of no consequence to this core, not to be reported, or stale.
        for status in [
            VALID | ENABLED,
            VALID | UC | ENABLED,
            VALID | UC | CONTEXT_CORRUPT,
            UC | ENABLED | CONTEXT_CORRUPT,
        ] {
            assert!(
                is_recoverable(RESTART_IP_VALID, [0, status].into_iter()),
                "{status:#x}"
            );
        }
    }

    #[test]
    fn errors_of_this_core_panic() {
        for unrecoverable in [CONTEXT_CORRUPT, ACTION_REQUIRED] {
            let banks = [0, VALID | UC | ENABLED | unrecoverable];
            assert!(
                !is_recoverable(RESTART_IP_VALID, banks.into_iter()),
                "{unrecoverable:#x}"
            );
        }
        assert!(!is_recoverable(0, [0].into_iter()), "RIP is not valid");
    }
}
