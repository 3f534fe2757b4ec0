//! Model-specific registers that a guest reads or writes by an exit.

use insula_abi::monitor::MonitorEnd;
use insula_bare::{apic, cpu};

use super::{Core, Ending, Outcome, ending};
use crate::guest::Guest;
use crate::policy::msr::{self, LocalVector, LocalVectors, Register};

impl<G: Guest> Core<G> {
    /// Registers that may be read exit only if the permission map has no place for them.
    pub(super) fn read_msr(&mut self, register: u32) {
        if let Some(value) = self.read_disguised(register) {
            return self.answer_msr(value);
        }
        if msr::read(register) != msr::Access::Pass || G::MAPS_ALL_REGISTERS {
            return self.guest.inject_general_protection();
        }
        // SAFETY: reading changes nothing. If the processor lacks the register, this ends the node,
        // as a fault in the monitor: Linux reads these only where CPUID shows them.
        self.answer_msr(unsafe { cpu::read_msr(register) });
    }

    fn answer_msr(&mut self, value: u64) {
        self.guest.set_rax(value & 0xffff_ffff);
        self.guest.registers().rdx = value >> 32;
        self.guest.skip_instruction();
    }

    pub(super) fn write_msr(&mut self, register: u32, value: u64) -> Outcome {
        let done = match msr::write(register) {
            _ if self.write_disguised(register, value) => true,
            msr::Access::Emulated(register) => self.emulate_msr(register, value)?,
            msr::Access::Ignored => true,
            msr::Access::Violation => {
                return Err(ending(MonitorEnd::MSR, register.into(), value));
            }
            // Registers that pass do not exit.
            msr::Access::Fault | msr::Access::Pass => false,
        };
        match done {
            true => self.guest.skip_instruction(),
            false => self.guest.inject_general_protection(),
        }
        Ok(())
    }

    /// Carries out a write. Returns whether the value is valid.
    fn emulate_msr(&mut self, register: Register, value: u64) -> Result<bool, Ending> {
        match register {
            // SAFETY: every x86-64 processor has the register; reading changes nothing.
            Register::ApicBase => match unsafe { cpu::read_msr(msr::APIC_BASE) } == value {
                true => Ok(true),
                false => Err(ending(MonitorEnd::MSR, msr::APIC_BASE.into(), value)),
            },
            Register::Efer => Ok(self.guest.write_efer(value)),
            Register::InterruptCommand => self.send(value).map(|()| true),
            Register::MachineCheckStatus if msr::is_machine_check_status_allowed(value) => {
                // SAFETY: a core that gets machine checks has the register, which is its own; others do
                // not write it.
                unsafe { cpu::write_msr(msr::MCG_STATUS, value) }
                Ok(true)
            }
            Register::MachineCheckStatus => Ok(false),
            Register::LocalVector(register) => Self::set_local_vector(register, value),
        }
    }

    /// Sets an entry of the core's local vector table. Returns whether the value is valid.
    fn set_local_vector(register: u32, value: u64) -> Result<bool, Ending> {
        let has = LocalVectors {
            last: apic::last_local_vector(),
            has_deadline: apic::has_deadline(),
        };
        match msr::local_vector(register, value, has) {
            LocalVector::Write(value) => {
                // SAFETY: it is for an interrupt or NMI of the core's own, and the processor has the
                // entry and its bits.
                unsafe { cpu::write_msr(register, value) }
                Ok(true)
            }
            LocalVector::Fault => Ok(false),
            LocalVector::Violation => Err(ending(MonitorEnd::MSR, register.into(), value)),
        }
    }
}
