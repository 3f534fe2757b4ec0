//! Machine checks: errors that the hardware tells by an exception (Intel SDM volume 3, chapter 17; AMD APM
//! volume 2, chapter 9).
//!
//! Many are told to every core of the machine, whomever they concern, and a core with `CR4.MCE` clear then shuts the
//! machine down, all kernels with it. So every core sets that bit, and goes on after an error that is none of its own.

use super::cpu::{cpuid, read_msr, write_msr};

/// The vector.
pub(super) const VECTOR: u64 = 18;

/// CR4: machine checks are exceptions.
const CR4_MCE: u64 = 1 << 6;
/// Of leaf 1 of CPUID, in EDX: there are machine checks, and banks of registers that tell of them.
const MCE: u32 = 1 << 7;
const MCA: u32 = 1 << 14;

/// How many banks there are, in the low eight bits.
const CAPABILITIES: u32 = 0x179;
/// What the present machine check is.
const STATUS: u32 = 0x17a;
/// The interrupted program can go on.
const STATUS_RESTARTABLE: u64 = 1 << 0;
/// The status of bank 0; each further bank's is four registers on.
const BANK_STATUS: u32 = 0x401;

/// Of a bank's status: there is an error, it could not be corrected, and is told because that was wanted.
const UNCORRECTED: u64 = 1 << 63 | 1 << 61 | 1 << 60;
/// The core's own state is no more what it should be; or, by Intel, something must be done before the program goes
/// on and, by AMD, the program's state is spoilt.
const SPOILT: u64 = 1 << 57 | 1 << 55;

/// The bits of CR4 by which this core takes machine checks, if it has any.
pub(super) fn cr4() -> u64 {
    match cpuid(1, 0).edx & MCE {
        0 => 0,
        _ => CR4_MCE,
    }
}

/// Whether a bank tells of an error after which its core cannot go on.
fn is_fatal(bank_status: u64) -> bool {
    bank_status & UNCORRECTED == UNCORRECTED && bank_status & SPOILT != 0
}

/// Whether a core can go on after a machine check of that status, with banks of these.
fn can_go_on(status: u64, mut banks: impl Iterator<Item = u64>) -> bool {
    status & STATUS_RESTARTABLE != 0 && !banks.any(is_fatal)
}

/// Takes the machine check that the calling core has been told of. What its banks tell is left for the kernel that
/// has the core next.
///
/// # Panics
/// If the core cannot go on.
pub(super) fn take() {
    if cpuid(1, 0).edx & MCA == 0 {
        panic!("a machine check, of which this processor tells nothing more");
    }
    // SAFETY: processors with MCA have these registers, and as many banks as they say; reading changes none.
    let (status, count) = unsafe { (read_msr(STATUS), read_msr(CAPABILITIES) & 0xff) };
    let banks = (0..count as u32).map(|bank| {
        // SAFETY: as above.
        unsafe { read_msr(BANK_STATUS + 4 * bank) }
    });
    if !can_go_on(status, banks.clone()) {
        let fatal = banks.enumerate().find(|&(_, bank)| is_fatal(bank));
        panic!(
            "the hardware reports an error by a machine check: status {status:#x}, bank {fatal:x?}"
        );
    }
    // SAFETY: the register exists. This ends the machine check: another one before would shut the machine down.
    unsafe { write_msr(STATUS, 0) }
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
    fn errors_of_others_are_survived() {
        let none = [0, 0, 0];
        assert!(can_go_on(STATUS_RESTARTABLE, none.into_iter()));
        // Corrected, of no consequence to this core, not meant to be told, or left over without being valid.
        for status in [
            VALID | ENABLED,
            VALID | UC | ENABLED,
            VALID | UC | CONTEXT_CORRUPT,
            UC | ENABLED | CONTEXT_CORRUPT,
        ] {
            assert!(
                can_go_on(STATUS_RESTARTABLE, [0, status].into_iter()),
                "{status:#x}"
            );
        }
    }

    #[test]
    fn errors_of_its_own_end_the_kernel() {
        for spoilt in [CONTEXT_CORRUPT, ACTION_REQUIRED] {
            let banks = [0, VALID | UC | ENABLED | spoilt];
            assert!(
                !can_go_on(STATUS_RESTARTABLE, banks.into_iter()),
                "{spoilt:#x}"
            );
        }
        assert!(!can_go_on(0, [0].into_iter()), "nothing to go on with");
    }
}
