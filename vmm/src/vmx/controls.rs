//! What exits, and what an entry and an exit switch.
//!
//! A processor tells by a register for each group which controls may be on (upper half) and which must
//! (lower half). What the monitor relies on is required; what must be on beyond that would exit for
//! no reason of the monitor, so such a processor is refused.
//!
//! Source: Intel SDM volume 3, 25.6 to 25.8, and appendix A.2 to A.5.

use bitflags::bitflags;

use crate::guest::Unsupported;

bitflags! {
    /// Pin-based controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Pin: u32 {
        /// Interrupts exit.
        const INTERRUPT = 1 << 0;
        /// Non-maskable interrupts exit.
        const NMI = 1 << 3;
        /// The guest has its own blocking of NMIs.
        const VIRTUAL_NMIS = 1 << 5;
        /// The guest exits when the timer has run down.
        const TIMER = 1 << 6;
    }
}

bitflags! {
    /// Primary processor-based controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Primary: u32 {
        /// The guest exits when it can take an interrupt.
        const INTERRUPT_WINDOW = 1 << 2;
        /// Something is added to the guest's time stamp counter.
        const TSC_OFFSET = 1 << 3;
        /// The guest exits when it can take an NMI.
        const NMI_WINDOW = 1 << 22;
        /// IN and OUT exit, whatever the port.
        const PORTS = 1 << 24;
        /// RDMSR and WRMSR exit by the permission map.
        const MSR_MAP = 1 << 28;
        /// There are secondary controls.
        const SECONDARY = 1 << 31;
    }
}

bitflags! {
    /// Secondary processor-based controls.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Secondary: u32 {
        /// Nested paging.
        const EPT = 1 << 1;
        /// RDTSCP and RDPID work.
        const RDTSCP = 1 << 3;
        /// Translations are tagged.
        const VPID = 1 << 5;
        /// WBINVD exits.
        const WBINVD = 1 << 6;
        /// The guest may be in real mode.
        const UNRESTRICTED = 1 << 7;
        /// INVPCID works.
        const INVPCID = 1 << 12;
        /// Instructions of enclaves exit by a bitmap.
        const ENCLS = 1 << 15;
        /// XSAVES works.
        const XSAVES = 1 << 20;
        /// TPAUSE, UMONITOR and UMWAIT work.
        const USER_WAIT = 1 << 26;
    }
}

bitflags! {
    /// Controls of exits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AtExit: u32 {
        /// DR7 and DEBUGCTL are saved.
        const SAVE_DEBUG = 1 << 2;
        /// The monitor is in 64-bit mode.
        const HOST_64 = 1 << 9;
        /// An interrupt that exits is taken from the local APIC.
        const TAKE_INTERRUPT = 1 << 15;
        /// PAT is saved.
        const SAVE_PAT = 1 << 18;
        /// PAT is loaded.
        const LOAD_PAT = 1 << 19;
        /// EFER is saved.
        const SAVE_EFER = 1 << 20;
        /// EFER is loaded.
        const LOAD_EFER = 1 << 21;
    }
}

bitflags! {
    /// Controls of entries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AtEntry: u32 {
        /// DR7 and DEBUGCTL are loaded.
        const LOAD_DEBUG = 1 << 2;
        /// The guest is in 64-bit mode, or its compatibility mode.
        const GUEST_64 = 1 << 9;
        /// PAT is loaded.
        const LOAD_PAT = 1 << 14;
        /// EFER is loaded.
        const LOAD_EFER = 1 << 15;
    }
}

/// Bits of each group that have no meaning and that most processors want set (appendix A).
const PIN_RESERVED: u32 = 0x16;
const PRIMARY_RESERVED: u32 = 0x0400_6172;
const EXIT_RESERVED: u32 = 0x3_6dfb;
const ENTRY_RESERVED: u32 = 0x11fb;

/// Secondary controls that are used where the processor has them: without, instructions that it has
/// would fault.
const SECONDARY_OPTIONAL: Secondary = Secondary::RDTSCP
    .union(Secondary::INVPCID)
    .union(Secondary::ENCLS)
    .union(Secondary::XSAVES)
    .union(Secondary::USER_WAIT);

/// Capability registers of the five groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the groups")]
pub struct Capabilities {
    pub pin: u64,
    pub primary: u64,
    pub secondary: u64,
    pub exit: u64,
    pub entry: u64,
}

/// The controls of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the groups")]
pub struct Controls {
    pub pin: u32,
    pub primary: u32,
    pub secondary: u32,
    pub exit: u32,
    pub entry: u32,
}

impl Controls {
    /// Chooses the controls for a processor. The timer and the windows are off at first, but there; so is
    /// what [`shared`](Self::shared) adds.
    ///
    /// # Errors
    /// [`Unsupported`] if it lacks one, or has more exits than wanted.
    pub fn choose(capabilities: &Capabilities) -> Result<Self, Unsupported> {
        let pin = Pin::all().bits();
        let primary = Primary::all().bits();
        let secondary = (Secondary::all() - SECONDARY_OPTIONAL).bits();
        let (exit, entry) = (AtExit::all().bits(), AtEntry::all().bits());
        let group = |name, required, optional, reserved, capability| {
            adjust(required, optional, reserved, capability).ok_or(Unsupported::Missing(name))
        };
        let Capabilities {
            pin: pins,
            primary: primaries,
            secondary: secondaries,
            exit: exits,
            entry: entries,
        } = *capabilities;
        let optional = SECONDARY_OPTIONAL.bits();
        Ok(Self {
            pin: group("virtual NMIs, or the timer", pin, 0, PIN_RESERVED, pins)?
                & !(Pin::TIMER | Pin::INTERRUPT).bits(),
            primary: group("primary controls", primary, 0, PRIMARY_RESERVED, primaries)?
                & !(Primary::NMI_WINDOW | Primary::INTERRUPT_WINDOW).bits(),
            secondary: group(
                "EPT, VPID or unrestricted guests",
                secondary,
                optional,
                0,
                secondaries,
            )?,
            exit: group("exit controls", exit, 0, EXIT_RESERVED, exits)?
                & !AtExit::TAKE_INTERRUPT.bits(),
            entry: group("entry controls", entry, 0, ENTRY_RESERVED, entries)?
                & !AtEntry::GUEST_64.bits(),
        })
    }

    /// Those of a lightweight kernel that shares the core: its memory, ports and time stamp counter are the
    /// processor's, and interrupts are not its own.
    #[must_use]
    pub fn shared(&self) -> Self {
        let confining =
            Secondary::EPT | Secondary::UNRESTRICTED | Secondary::WBINVD | Secondary::ENCLS;
        Self {
            pin: self.pin | Pin::INTERRUPT.bits(),
            primary: self.primary & !(Primary::TSC_OFFSET | Primary::PORTS).bits(),
            secondary: self.secondary & !confining.bits(),
            exit: self.exit | AtExit::TAKE_INTERRUPT.bits(),
            entry: self.entry,
        }
    }

    /// Whether a secondary control is on.
    #[must_use]
    pub fn has(&self, control: Secondary) -> bool {
        self.secondary & control.bits() != 0
    }
}

/// The value of a group: all required bits, those optional ones that may be on, and what must be on.
/// `None` if a required bit may not be on, or one must be that is neither wanted nor reserved.
const fn adjust(required: u32, optional: u32, reserved: u32, capability: u64) -> Option<u32> {
    let (forced, allowed) = (capability as u32, (capability >> 32) as u32);
    let lacks = required & !allowed != 0;
    let has_more = forced & !(required | optional | reserved) != 0;
    if lacks || has_more {
        return None;
    }
    Some(required | optional & allowed | forced)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The capabilities of a Skylake server, as its registers have them.
    const SKYLAKE: Capabilities = Capabilities {
        pin: 0x0000_007f_0000_0016,
        primary: 0xfff9_fffe_0400_6172,
        secondary: 0x0055_3cfe_0000_0000,
        exit: 0x01ff_ffff_0003_6dfb,
        entry: 0x0003_ffff_0000_11fb,
    };

    #[test]
    fn only_what_is_wanted_exits() {
        let controls = Controls::choose(&SKYLAKE).expect("all there");
        assert_eq!(controls.pin, 0x16 | 1 << 3 | 1 << 5);
        assert_eq!(
            controls.primary,
            PRIMARY_RESERVED | 1 << 3 | 1 << 24 | 1 << 28 | 1 << 31
        );
        // Neither interrupts, HLT, INVLPG, MWAIT, RDPMC, RDTSC, CR3, DR, PAUSE nor descriptor tables exit.
        assert_eq!(controls.pin & 1, 0);
        for bit in [7, 9, 10, 11, 12, 15, 16, 19, 20, 23, 30] {
            assert_eq!(controls.primary & 1 << bit, 0, "bit {bit}");
        }
        assert_eq!(controls.secondary & 1 << 2, 0);
        for wanted in [Secondary::RDTSCP, Secondary::INVPCID, Secondary::XSAVES] {
            assert!(controls.has(wanted), "{wanted:?}");
        }
        assert!(!controls.has(Secondary::USER_WAIT));
        assert_eq!(controls.entry & AtEntry::GUEST_64.bits(), 0);
        let at_exit = AtExit::all() - AtExit::TAKE_INTERRUPT;
        assert_eq!(controls.exit, EXIT_RESERVED | at_exit.bits());
    }

    #[test]
    fn interrupts_of_the_node_exit_from_a_kernel_beside_it() {
        let shared = Controls::choose(&SKYLAKE).expect("all there").shared();
        assert_eq!(shared.pin, 0x16 | 1 << 0 | 1 << 3 | 1 << 5);
        assert_eq!(shared.primary, PRIMARY_RESERVED | 1 << 28 | 1 << 31);
        assert!(!shared.has(Secondary::EPT) && !shared.has(Secondary::UNRESTRICTED));
        assert!(shared.has(Secondary::VPID) && shared.has(Secondary::RDTSCP));
        assert_eq!(shared.exit, EXIT_RESERVED | AtExit::all().bits());
    }

    #[test]
    fn a_processor_that_lacks_something_is_refused() {
        let without = |bit: u32| !(1_u64 << (32 + bit));
        for capabilities in [
            Capabilities {
                pin: SKYLAKE.pin & without(5),
                ..SKYLAKE
            },
            Capabilities {
                secondary: SKYLAKE.secondary & without(7),
                ..SKYLAKE
            },
            Capabilities {
                entry: SKYLAKE.entry & without(15),
                ..SKYLAKE
            },
            // Without the "true" registers loads of CR3 have to exit.
            Capabilities {
                primary: SKYLAKE.primary | 3 << 15,
                ..SKYLAKE
            },
        ] {
            assert!(matches!(
                Controls::choose(&capabilities),
                Err(Unsupported::Missing(_))
            ));
        }
        let without_optional = SKYLAKE.secondary & without(20) & without(12);
        let older = Capabilities {
            secondary: without_optional,
            ..SKYLAKE
        };
        let controls = Controls::choose(&older).expect("what is required is there");
        assert!(!controls.has(Secondary::XSAVES));
    }

    proptest! {
        #[test]
        fn the_processor_accepts_what_is_chosen(
            required in any::<u32>(), optional in any::<u32>(), reserved in any::<u32>(),
            capability in any::<u64>(),
        ) {
            let (forced, allowed) = (capability as u32, (capability >> 32) as u32 | capability as u32);
            let capability = u64::from(allowed) << 32 | u64::from(forced);
            if let Some(value) = adjust(required, optional, reserved, capability) {
                prop_assert_eq!(value & forced, forced);
                prop_assert_eq!(value & !allowed, 0);
                prop_assert_eq!(value & required, required);
                prop_assert_eq!(value & !(required | optional | reserved), 0);
            }
        }
    }
}
