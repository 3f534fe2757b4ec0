//! Decodes exits.
//!
//! Source: Intel SDM volume 3, 28.2 "Recording VM-Exit Information and Updating VM-entry Control
//! Fields", and appendix C "VMX Basic Exit Reasons".

use super::Registers;
use super::vmcs::field;
use crate::exit::Exit;

/// Basic exit reasons.
pub(super) mod reason {
    pub(super) const EXCEPTION_OR_NMI: u32 = 0;
    pub(in crate::vmx) const INTERRUPT: u32 = 1;
    pub(super) const TRIPLE_FAULT: u32 = 2;
    pub(super) const INIT: u32 = 3;
    pub(super) const INTERRUPT_WINDOW: u32 = 7;
    pub(super) const NMI_WINDOW: u32 = 8;
    pub(super) const CPUID: u32 = 10;
    pub(super) const INVD: u32 = 13;
    /// First of the instructions of VMX, and last of those that are old.
    pub(in crate::vmx) const VMCALL: u32 = 18;
    pub(super) const VMXON: u32 = 27;
    pub(super) const CONTROL_REGISTER: u32 = 28;
    pub(super) const PORT: u32 = 30;
    pub(super) const RDMSR: u32 = 31;
    pub(super) const WRMSR: u32 = 32;
    pub(super) const EPT_VIOLATION: u32 = 48;
    pub(super) const INVEPT: u32 = 50;
    pub(super) const TIMER: u32 = 52;
    pub(super) const INVVPID: u32 = 53;
    pub(super) const WBINVD: u32 = 54;
    pub(super) const XSETBV: u32 = 55;
}

/// An event as the fields have it: vector, type, whether it has an error code, and whether it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub u32);

impl Event {
    /// A non-maskable interrupt.
    pub const NMI: Self = Self(1 << 31 | 2 << 8 | 2);
    /// An invalid opcode exception.
    pub const INVALID_OPCODE: Self = Self(1 << 31 | 3 << 8 | 6);
    /// A general protection fault, with error code.
    pub const GENERAL_PROTECTION: Self = Self(1 << 31 | 1 << 11 | 3 << 8 | 13);
    /// Vector of debug exceptions.
    pub const DEBUG: u32 = 1;

    /// An interrupt by that vector.
    #[must_use]
    pub const fn interrupt(vector: u8) -> Self {
        Self(1 << 31 | vector as u32)
    }

    /// Whether there is one.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & 1 << 31 != 0
    }

    /// Whether it is an NMI.
    #[must_use]
    pub const fn is_nmi(self) -> bool {
        self.0 >> 8 & 7 == 2
    }

    /// Its vector.
    #[must_use]
    pub const fn vector(self) -> u32 {
        self.0 & 0xff
    }

    /// Whether it has an error code.
    #[must_use]
    pub const fn has_error_code(self) -> bool {
        self.0 & 1 << 11 != 0
    }

    /// Without bit 12, which says at an exit whether IRET had unblocked NMIs.
    #[must_use]
    pub const fn to_deliver(self) -> u32 {
        self.0 & !(1 << 12)
    }

    /// Whether IRET had unblocked NMIs before it faulted.
    #[must_use]
    pub const fn has_unblocked_nmis(self) -> bool {
        self.0 & 1 << 12 != 0
    }
}

/// An exit, or what the processor's kind answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// For the core's loop.
    Exit(Exit),
    /// CR0 was to be written with this value.
    WriteCr0(u64),
    /// The timer has run down: an NMI was taken by the monitor.
    NmiTaken,
}

/// Whether this is the reason of an exit for memory that the guest does not have, or not so.
#[must_use]
pub const fn is_memory(reason: u32) -> bool {
    reason == reason::EPT_VIOLATION
}

/// Decodes the exit that fields of the VMCS describe.
#[must_use]
pub fn decode(read: impl Fn(u32) -> u64, registers: &Registers) -> Decoded {
    let reason = read(field::EXIT_REASON) as u32;
    let qualification = || read(field::EXIT_QUALIFICATION);
    let value = registers.general.rdx << 32 | registers.rax & 0xffff_ffff;
    let register = registers.general.rcx as u32;
    Decoded::Exit(match reason {
        reason::EXCEPTION_OR_NMI => match Event(read(field::EXIT_EVENT) as u32) {
            event if event.is_nmi() => Exit::Nmi,
            event => Exit::Exception(event.0.into()),
        },
        reason::TRIPLE_FAULT => Exit::Shutdown,
        reason::INIT => Exit::Init,
        reason::NMI_WINDOW => Exit::InterruptReturn,
        reason::INTERRUPT_WINDOW => Exit::InterruptWindow,
        reason::CPUID => Exit::Cpuid,
        reason::INVD | reason::WBINVD => Exit::FlushCaches,
        reason::CONTROL_REGISTER => {
            return control_register(qualification(), || read(field::GUEST_RSP), registers)
                .map_or(Decoded::Exit(Exit::Other(reason.into())), Decoded::WriteCr0);
        }
        reason::PORT => port(qualification(), registers.rax as u32),
        reason::RDMSR => Exit::ReadMsr(register),
        reason::WRMSR => Exit::WriteMsr { register, value },
        reason::EPT_VIOLATION => Exit::Memory {
            address: read(field::GUEST_PHYSICAL_ADDRESS),
            error: page_fault(qualification()),
        },
        reason::VMCALL..=reason::VMXON | reason::INVEPT | reason::INVVPID => {
            Exit::Virtualization(reason.into())
        }
        reason::TIMER => return Decoded::NmiTaken,
        reason::XSETBV => Exit::WriteXcr { register, value },
        // Among them failed entries, which have bit 31 set.
        reason => Exit::Other(reason.into()),
    })
}

/// The value that a MOV writes to CR0; `None` for anything else that exits, such as setting CR4.VMXE.
fn control_register(
    qualification: u64,
    rsp: impl Fn() -> u64,
    registers: &Registers,
) -> Option<u64> {
    let (number, access) = (qualification & 0xf, qualification >> 4 & 3);
    let is_move_to_cr0 = number == 0 && access == 0;
    is_move_to_cr0.then(|| match qualification >> 8 & 0xf {
        0 => registers.rax,
        1 => registers.general.rcx,
        2 => registers.general.rdx,
        3 => registers.general.rbx,
        4 => rsp(),
        5 => registers.general.rbp,
        6 => registers.general.rsi,
        7 => registers.general.rdi,
        number => registers.general.r8_to_r15[number as usize - 8],
    })
}

/// An access to a port.
fn port(qualification: u64, value: u32) -> Exit {
    let port = (qualification >> 16) as u16;
    let size = (qualification & 7) as u8 + 1;
    let (is_string, is_read) = (qualification & 1 << 4 != 0, qualification & 1 << 3 != 0);
    match (is_string, is_read) {
        (true, _) => Exit::PortString(port),
        (false, true) => Exit::ReadPort { port, size },
        (false, false) => Exit::WritePort { port, size, value },
    }
}

/// The error code of a page fault that says the same: whether there is a page, whether it was written or
/// executed; by a program, as all nested accesses.
const fn page_fault(qualification: u64) -> u64 {
    let is_present = qualification & 7 << 3 != 0;
    let is_write = qualification & 1 << 1 != 0;
    let is_fetch = qualification & 1 << 2 != 0;
    is_present as u64 | (is_write as u64) << 1 | 1 << 2 | (is_fetch as u64) << 4
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::guest::GuestRegisters;

    fn registers() -> Registers {
        Registers {
            general: GuestRegisters {
                rcx: 0x1_0000_0830,
                rdx: 0x7_0000_0002,
                r8_to_r15: [8, 9, 10, 11, 12, 13, 14, 15],
                ..GuestRegisters::default()
            },
            rax: 0x9_0000_4500,
        }
    }

    fn decoded(fields: &[(u32, u64)]) -> Decoded {
        let fields: BTreeMap<u32, u64> = fields.iter().copied().collect();
        decode(
            |field| fields.get(&field).copied().unwrap_or(0),
            &registers(),
        )
    }

    fn by_reason(reason: u64) -> Decoded {
        decoded(&[(field::EXIT_REASON, reason)])
    }

    fn qualified(reason: u64, qualification: u64) -> Decoded {
        decoded(&[
            (field::EXIT_REASON, reason),
            (field::EXIT_QUALIFICATION, qualification),
        ])
    }

    #[test]
    fn nmis_and_exceptions_differ_by_type() {
        let event = |event| decoded(&[(field::EXIT_EVENT, event)]);
        assert_eq!(event(0x8000_0202), Decoded::Exit(Exit::Nmi));
        let alignment = 0x8000_0b11;
        assert_eq!(event(alignment), Decoded::Exit(Exit::Exception(alignment)));
        assert!(Event(alignment as u32).has_error_code());
        assert_eq!(Event(0x8000_1301).to_deliver(), 0x8000_0301);
        assert_eq!(Event::interrupt(0xec).0, 0x8000_00ec);
    }

    #[test]
    fn registers_have_their_lower_halves() {
        let (register, value) = (0x830, 0x2_0000_4500);
        let write = Exit::WriteMsr { register, value };
        assert_eq!(by_reason(32), Decoded::Exit(write));
        assert_eq!(by_reason(31), Decoded::Exit(Exit::ReadMsr(0x830)));
        let write = Exit::WriteXcr { register, value };
        assert_eq!(by_reason(55), Decoded::Exit(write));
    }

    #[test]
    fn ports_have_size_and_direction() {
        let read = Exit::ReadPort {
            port: 0x71,
            size: 1,
        };
        assert_eq!(qualified(30, 0x71_0008), Decoded::Exit(read));
        let write = Exit::WritePort {
            port: 0xcf8,
            size: 4,
            value: 0x4500,
        };
        assert_eq!(qualified(30, 0xcf8_0003), Decoded::Exit(write));
        let string = Exit::PortString(0x1f0);
        assert_eq!(qualified(30, 0x1f0_0039), Decoded::Exit(string));
    }

    #[test]
    fn memory_has_the_error_code_of_a_page_fault() {
        let exit = |qualification| {
            decoded(&[
                (field::EXIT_REASON, 48),
                (field::EXIT_QUALIFICATION, qualification),
                (field::GUEST_PHYSICAL_ADDRESS, 0xfee0_0300),
            ])
        };
        let memory = |error| {
            let address = 0xfee0_0300;
            Decoded::Exit(Exit::Memory { address, error })
        };
        assert_eq!(exit(0x181), memory(4));
        assert_eq!(exit(0x182), memory(6));
        // Written, where only reading and executing is allowed.
        assert_eq!(exit(0x1aa), memory(7));
        assert_eq!(exit(0x184), memory(0x14));
    }

    #[test]
    fn only_moves_to_cr0_are_answered() {
        assert_eq!(qualified(28, 0x900), Decoded::WriteCr0(9));
        assert_eq!(qualified(28, 0x000), Decoded::WriteCr0(0x9_0000_4500));
        // MOV to CR4, MOV from CR0, LMSW.
        for qualification in [0x004, 0x010, 0x030] {
            let other = Decoded::Exit(Exit::Other(28));
            assert_eq!(qualified(28, qualification), other, "{qualification:#x}");
        }
    }

    #[test]
    fn the_rest_is_by_reason() {
        for (reason, exit) in [
            (2, Exit::Shutdown),
            (3, Exit::Init),
            (7, Exit::InterruptWindow),
            (8, Exit::InterruptReturn),
            (10, Exit::Cpuid),
            (13, Exit::FlushCaches),
            (54, Exit::FlushCaches),
            (27, Exit::Virtualization(27)),
            (18, Exit::Virtualization(18)),
            (53, Exit::Virtualization(53)),
            // A task switch, an entry with an invalid state.
            (9, Exit::Other(9)),
            (0x8000_0021, Exit::Other(0x8000_0021)),
        ] {
            assert_eq!(by_reason(reason), Decoded::Exit(exit));
        }
        assert_eq!(by_reason(52), Decoded::NmiTaken);
    }
}
