//! Modes of local APICs, and how a core gets from one to another.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::arch::cpu::{self, Msr, read_msr, write_msr};

const X2APIC_MODE: u64 = 1 << 10;
const GLOBAL_ENABLE: u64 = 1 << 11;
/// Largest APIC id in xAPIC mode: 255 is all cores.
const XAPIC_ID_MAX: u32 = 254;

/// Where the registers of local APICs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In a page of memory.
    XApic,
    /// They are model-specific registers.
    X2Apic,
}

/// Whether the kernel's cores are in x2APIC mode.
static IS_X2APIC: AtomicBool = AtomicBool::new(false);

impl Mode {
    /// Mode of the calling core. A core whose APIC is disabled counts as one in xAPIC mode, which
    /// enabling it leads to.
    #[must_use]
    pub fn of_core() -> Self {
        // SAFETY: every x86-64 processor has the register.
        Self::from_base(unsafe { read_msr(Msr::ApicBase as u32) })
    }

    /// Whether the processor has x2APIC mode.
    #[must_use]
    pub fn has_x2apic() -> bool {
        cpu::cpuid(1, 0).ecx & 1 << 21 != 0
    }

    /// Mode that was chosen for the kernel.
    pub(super) fn of_kernel() -> Self {
        match IS_X2APIC.load(Ordering::Relaxed) {
            true => Self::X2Apic,
            false => Self::XApic,
        }
    }

    /// Makes it the mode of the kernel.
    pub(super) fn choose(self) {
        IS_X2APIC.store(self == Self::X2Apic, Ordering::Release);
    }

    /// The mode for a kernel whose first core is in this one and whose ids go up to `max_id`.
    pub(super) fn for_ids(self, max_id: u32) -> Self {
        if max_id > XAPIC_ID_MAX {
            return Self::X2Apic;
        }
        self
    }

    /// Enables the calling core's APIC in this mode.
    pub(super) fn enter(self) {
        // SAFETY: every x86-64 processor has the register. x2APIC mode is chosen only where some
        // core is in it or an id shows that it exists, and each step is a valid transition.
        unsafe {
            let base = read_msr(Msr::ApicBase as u32);
            for step in self.steps(base).into_iter().flatten() {
                write_msr(Msr::ApicBase as u32, step);
            }
        }
    }

    fn from_base(base: u64) -> Self {
        match base & X2APIC_MODE {
            0 => Self::XApic,
            _ => Self::X2Apic,
        }
    }

    /// Values to write to the base register, which holds `base`, so that the APIC is enabled in
    /// this mode. Into x2APIC mode the way leads through xAPIC mode, and from there through the
    /// disabled state: other transitions fault (Intel SDM volume 3, 11.12.5).
    fn steps(self, base: u64) -> [Option<u64>; 2] {
        let disabled = base & !(GLOBAL_ENABLE | X2APIC_MODE);
        let (xapic, x2apic) = (
            disabled | GLOBAL_ENABLE,
            disabled | GLOBAL_ENABLE | X2APIC_MODE,
        );
        match (Self::from_base(base), self) {
            (Self::XApic, Self::XApic) => [Some(xapic), None],
            (Self::XApic, Self::X2Apic) => [Some(xapic), Some(x2apic)],
            (Self::X2Apic, Self::XApic) => [Some(disabled), Some(xapic)],
            (Self::X2Apic, Self::X2Apic) => [None, None],
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::XApic => "xAPIC",
            Self::X2Apic => "x2APIC",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Address of the registers, and the flag of the first core.
    const OTHER_BITS: u64 = 0xfee0_0000 | 1 << 8;
    const STATES: [u64; 3] = [0, GLOBAL_ENABLE, GLOBAL_ENABLE | X2APIC_MODE];

    /// Whether the processor accepts the transition.
    fn is_valid(from: u64, to: u64) -> bool {
        let [disabled, xapic, x2apic] = STATES;
        let state = |base: u64| base & (GLOBAL_ENABLE | X2APIC_MODE);
        match (state(from), state(to)) {
            (from, to) if from == to => true,
            (from, to) if from == disabled => to == xapic,
            (from, to) if from == xapic => to == disabled || to == x2apic,
            (_, to) => to == disabled,
        }
    }

    #[test]
    fn every_mode_is_entered_from_every_state_by_valid_transitions() {
        for from in STATES {
            for (mode, wanted) in [(Mode::XApic, STATES[1]), (Mode::X2Apic, STATES[2])] {
                let mut base = OTHER_BITS | from;
                for step in mode.steps(base).into_iter().flatten() {
                    assert!(is_valid(base, step), "{base:#x} to {step:#x}");
                    base = step;
                }
                assert_eq!(base, OTHER_BITS | wanted, "{mode:?} from {from:#x}");
            }
        }
    }

    #[test]
    fn kernel_keeps_the_mode_of_its_first_core_unless_an_id_needs_the_other() {
        assert_eq!(Mode::XApic.for_ids(254), Mode::XApic);
        assert_eq!(Mode::XApic.for_ids(255), Mode::X2Apic);
        assert_eq!(Mode::X2Apic.for_ids(1), Mode::X2Apic);
        assert_eq!(Mode::from_base(OTHER_BITS), Mode::XApic);
        assert_eq!(Mode::from_base(OTHER_BITS | STATES[2]), Mode::X2Apic);
    }
}
