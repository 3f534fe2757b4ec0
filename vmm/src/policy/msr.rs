//! Model-specific registers: what the node's kernel may read and write.
//!
//! What is a core's own, and changes nothing for other cores, passes without an exit. All else is refused
//! as by a processor that lacks the register, by a general protection fault, which Linux expects when it
//! looks for features; or, where Linux writes without looking, the write is lost. A write to what would
//! take the machine over is a violation.
//!
//! Sources: Intel SDM volume 4; AMD APM volume 2, appendix A.

/// First and last register.
type Range = (u32, u32);

/// What an access to a register does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Accesses the register.
    Pass,
    /// The processor seems to lack the register.
    Fault,
    /// The write is lost.
    Ignored,
    /// The monitor carries the write out, or refuses it.
    Emulated(Register),
    /// Not for a node.
    Violation,
}

/// A register whose writes the monitor carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Base and mode of the local APIC.
    ApicBase,
    /// Extended features.
    Efer,
    /// Interrupt command register of the local APIC.
    InterruptCommand,
    /// An entry of its local vector table, by its MSR.
    LocalVector(u32),
    /// State of the core's machine check.
    MachineCheckStatus,
}

/// IA32_APIC_BASE.
pub const APIC_BASE: u32 = 0x1b;
/// EFER.
pub const EFER: u32 = 0xc000_0080;
/// Interrupt command register in x2APIC mode.
pub const ICR: u32 = 0x830;
/// IA32_MCG_STATUS.
pub const MCG_STATUS: u32 = 0x17a;

/// Id of the local APIC in x2APIC mode, and its logical id.
pub const APIC_ID: u32 = 0x802;
/// See [`APIC_ID`].
pub const LOGICAL_ID: u32 = 0x80d;
/// Deadline of the local APIC's timer.
pub const DEADLINE: u32 = 0x6e0;

/// What exits in a copy of a node: registers, and whether reading and writing them does.
pub const DISGUISED: [(u32, bool, bool); 3] = [
    (APIC_ID, true, false),
    (LOGICAL_ID, true, false),
    (DEADLINE, true, true),
];

/// The logical id of the local APIC with this id (Intel SDM volume 3, 11.12.10.2).
#[must_use]
pub const fn logical_id(apic_id: u32) -> u32 {
    apic_id >> 4 << 16 | 1 << (apic_id & 0xf)
}

/// Registers of the local APIC in x2APIC mode.
const X2APIC: [Range; 1] = [(0x800, 0x83f)];

/// Registers that are read and written.
const OWN: [Range; 17] = [
    // SYSENTER.
    (0x174, 0x176),
    // Memory types of page table entries.
    (0x277, 0x277),
    // Speculation control; predictor barrier; buffer flush.
    (0x48, 0x49),
    (0x10b, 0x10b),
    // Intel: mitigations that kernels switch where CPUID says so, by TSX and by the cache of random numbers.
    (0x122, 0x123),
    // Debug control, last branch.
    (0x1d9, 0x1d9),
    // Extended state that only the kernel saves.
    (0xda0, 0xda0),
    // Shadow stacks.
    (0x6a0, 0x6a8),
    // Deadline of the local APIC's timer.
    (0x6e0, 0x6e0),
    // Performance counters: Intel's, and AMD's of all generations.
    (0xc1, 0xc8),
    (0x186, 0x18d),
    (0x309, 0x30c),
    (0x38d, 0x390),
    (0xc001_0000, 0xc001_0007),
    (0xc001_0200, 0xc001_020b),
    // SYSCALL, segment bases, core number.
    (0xc000_0081, 0xc000_0084),
    (0xc000_0100, 0xc000_0103),
];

/// Registers that are read; writes are lost, since the base decides about them for all kernels.
const SHARED: [Range; 15] = [
    // Time stamp counter, and its adjustment.
    (0x10, 0x10),
    (0x3b, 0x3b),
    // Microcode revision.
    (0x8b, 0x8b),
    // Machine checks: their banks may belong to several cores.
    (0x179, 0x17b),
    (0x400, 0x47f),
    (0xc000_2000, 0xc000_21ff),
    // Memory types of physical memory.
    (0xfe, 0xfe),
    (0x200, 0x26f),
    (0x2ff, 0x2ff),
    // Frequencies, their limits and counts, temperature.
    (0xe7, 0xe8),
    (0x198, 0x19c),
    (0x1a0, 0x1a0),
    // Intel: preference between energy and performance, temperature of the package.
    (0x1b0, 0x1b2),
    // AMD: system and hardware configuration, performance states.
    (0xc001_0010, 0xc001_001f),
    (0xc001_0055, 0xc001_0068),
];

/// Registers that are read, and that nobody writes.
const READ_ONLY: [Range; 8] = [
    // Platform, features, capabilities.
    (0x17, 0x17),
    (0x3a, 0x3a),
    (0xce, 0xcf),
    (0x10a, 0x10a),
    (0x345, 0x345),
    // AMD: known errata, decoder and load-store configuration.
    (0xc001_0140, 0xc001_0141),
    (0xc001_1020, 0xc001_1029),
    (0xc001_102a, 0xc001_102d),
];

/// Registers whose writing takes the machine over: microcode, system management mode, virtualization.
const FORBIDDEN: [Range; 7] = [
    (0x79, 0x79),
    (0x9b, 0x9e),
    (0x480, 0x493),
    (0xc001_0020, 0xc001_0020),
    (0xc001_0111, 0xc001_0113),
    (0xc001_0114, 0xc001_0117),
    (0xc001_0118, 0xc001_011b),
];

/// All registers that pass, for reading at least; and EFER and IA32_APIC_BASE.
pub const LISTED: [&[Range]; 5] = [
    &[(APIC_BASE, APIC_BASE), (EFER, EFER)],
    &X2APIC,
    &OWN,
    &SHARED,
    &READ_ONLY,
];

const fn contains(list: &[Range], register: u32) -> bool {
    let mut at = 0;
    while at < list.len() {
        if list[at].0 <= register && register <= list[at].1 {
            return true;
        }
        at += 1;
    }
    false
}

/// Classifies a read.
#[must_use]
pub const fn read(register: u32) -> Access {
    let readable = register == APIC_BASE
        || register == EFER
        || contains(&X2APIC, register)
        || contains(&OWN, register)
        || contains(&SHARED, register)
        || contains(&READ_ONLY, register);
    if readable {
        Access::Pass
    } else {
        Access::Fault
    }
}

/// Classifies a write.
#[must_use]
pub const fn write(register: u32) -> Access {
    match register {
        APIC_BASE => Access::Emulated(Register::ApicBase),
        EFER => Access::Emulated(Register::Efer),
        ICR => Access::Emulated(Register::InterruptCommand),
        MCG_STATUS => Access::Emulated(Register::MachineCheckStatus),
        0x82f | 0x832..=0x837 => Access::Emulated(Register::LocalVector(register)),
        _ if contains(&FORBIDDEN, register) => Access::Violation,
        _ if contains(&X2APIC, register) || contains(&OWN, register) => Access::Pass,
        _ if contains(&SHARED, register) => Access::Ignored,
        // Linux clears a bit of the load-store configuration without looking (`init_amd`).
        0xc001_1020..=0xc001_102d => Access::Ignored,
        _ => Access::Fault,
    }
}

/// What the core's local APIC has of the local vector table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalVectors {
    /// Number of the last entry: bits 16 to 23 of its version register.
    pub last: u8,
    /// The timer has deadlines.
    pub has_deadline: bool,
}

/// What is done with a write to an entry of the local vector table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalVector {
    /// Writes this to the register, which takes it.
    Write(u64),
    /// The processor has no such entry, or no such bits: it faults.
    Fault,
    /// Not for a node.
    Violation,
}

const MASKED: u64 = 1 << 16;
/// Bits of an entry: vector, mode of delivery, polarity and trigger of a pin; timer modes. Two more are
/// only read.
const VECTOR: u64 = 0xff;
const DELIVERY: u64 = 7 << 8;
const PIN: u64 = 1 << 13 | 1 << 15;
const PERIODIC: u64 = 1 << 17;
const DEADLINE_MODE: u64 = 1 << 18;
const READ_ONLY_BITS: u64 = 1 << 12 | 1 << 14;

/// Decides about a write to an entry. An interrupt of its own, an NMI, or anything that is masked may be set;
/// system management and external interrupts, and INIT, are not for a node. What the processor would not
/// take must not be written: the fault would be the monitor's (Intel SDM volume 3, 11.5.1 and 11.12.1.2).
#[must_use]
pub const fn local_vector(register: u32, value: u64, has: LocalVectors) -> LocalVector {
    // The number of the last entry tells which exist: performance counters, temperature, machine checks.
    let (least, bits) = match register {
        0x832 if has.has_deadline => (0, VECTOR | PERIODIC | DEADLINE_MODE),
        0x832 => (0, VECTOR | PERIODIC),
        0x835 | 0x836 => (0, VECTOR | DELIVERY | PIN),
        0x837 => (0, VECTOR),
        0x834 => (4, VECTOR | DELIVERY),
        0x833 => (5, VECTOR | DELIVERY),
        0x82f => (6, VECTOR | DELIVERY),
        _ => return LocalVector::Fault,
    };
    let is_timer_mode_valid = value & (PERIODIC | DEADLINE_MODE) != PERIODIC | DEADLINE_MODE;
    if has.last < least || value & !(bits | MASKED | READ_ONLY_BITS) != 0 || !is_timer_mode_valid {
        return LocalVector::Fault;
    }
    let mode = value >> 8 & 7;
    match mode == 0 || mode == 4 || value & MASKED != 0 {
        true => LocalVector::Write(value & !READ_ONLY_BITS),
        false => LocalVector::Violation,
    }
}

/// Whether the state of a machine check may be written: it is cleared by a handler that is done. If it
/// stayed, or were set, the next machine check of the core would shut the machine down.
#[must_use]
pub const fn is_machine_check_status_allowed(value: u64) -> bool {
    value == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_disjoint() {
        let lists: [&[Range]; 4] = [&OWN, &SHARED, &READ_ONLY, &FORBIDDEN];
        let all: Vec<_> = lists.iter().flat_map(|list| list.iter()).collect();
        for (number, one) in all.iter().enumerate() {
            for other in &all[number + 1..] {
                let apart = one.1 < other.0 || other.1 < one.0;
                assert!(apart, "{one:x?} and {other:x?}");
            }
        }
    }

    #[test]
    fn the_local_apic_needs_no_exit() {
        // Task priority, end of interrupt, initial count of the timer, self IPI.
        for register in [0x808, 0x80b, 0x838, 0x83f] {
            assert_eq!(write(register), Access::Pass, "{register:#x}");
        }
        assert_eq!(read(ICR), Access::Pass);
        assert_eq!(write(ICR), Access::Emulated(Register::InterruptCommand));
        assert_eq!(write(0x832), Access::Emulated(Register::LocalVector(0x832)));
    }

    #[test]
    fn nothing_that_takes_the_machine_over_passes() {
        for register in [
            0x79,
            0x9b,
            0x480,
            0xc001_0020,
            0xc001_0112,
            0xc001_0114,
            0xc001_0117,
        ] {
            assert_eq!(write(register), Access::Violation, "{register:#x}");
        }
        for register in [0x10, 0x8b, 0x200, 0x2ff, 0xc001_0010, 0xc001_0015] {
            assert_eq!(write(register), Access::Ignored, "{register:#x}");
        }
        assert_eq!(write(0x1234), Access::Fault);
        assert_eq!(read(0x1234), Access::Fault);
    }

    const ALL: LocalVectors = LocalVectors {
        last: 6,
        has_deadline: true,
    };

    #[test]
    fn a_machine_check_ends_and_none_is_made_up() {
        assert_eq!(
            write(MCG_STATUS),
            Access::Emulated(Register::MachineCheckStatus)
        );
        assert!(is_machine_check_status_allowed(0) && !is_machine_check_status_allowed(1 << 2));
    }

    #[test]
    fn local_vectors_are_interrupts_or_nmis() {
        for value in [0xef, 0x1_00ef, 0x2_00ef, 0x4_00ef] {
            assert_eq!(local_vector(0x832, value, ALL), LocalVector::Write(value));
        }
        assert_eq!(local_vector(0x836, 0x5400, ALL), LocalVector::Write(0x400));
        for register in [0x82f, 0x833, 0x834, 0x835, 0x836] {
            for mode in [2, 5, 7] {
                let value = mode << 8;
                assert_eq!(local_vector(register, value, ALL), LocalVector::Violation);
                let masked = local_vector(register, value | MASKED, ALL);
                assert_eq!(masked, LocalVector::Write(value | MASKED));
            }
        }
    }

    #[test]
    fn what_the_processor_would_not_take_faults() {
        let least = LocalVectors {
            last: 3,
            has_deadline: false,
        };
        for register in [0x82f, 0x833, 0x834, 0x831, 0x838] {
            assert_eq!(local_vector(register, 0x40, least), LocalVector::Fault);
        }
        for (register, value) in [
            (0x832, 0x4_00ef),
            (0x832, 0x400),
            (0x837, 0x400),
            (0x836, 1 << 17),
            (0x836, 1 << 11),
            (0x836, 1 << 32 | 0x400),
        ] {
            assert_eq!(
                local_vector(register, value, least),
                LocalVector::Fault,
                "{register:#x}"
            );
        }
        assert_eq!(local_vector(0x832, 0x6_00ef, ALL), LocalVector::Fault);
    }
}
