//! Registers of the calling core's local APIC, in the mode of the kernel.

use core::arch::asm;
use core::ptr;

use super::mode::Mode;
use crate::arch::cpu::{self, Msr, read_msr, write_msr};
use crate::arch::paging::{Flags, MapError, Page, PageSize, PageTable};
use crate::memory::{FrameAllocator, PhysAddr};

/// Virtual address of the page in xAPIC mode: in the last GiB, which nothing else uses.
const WINDOW: u64 = 0xffff_ffff_c000_0000;
const PAGE: PhysAddr = PhysAddr(0xfee0_0000);

/// Interrupt command register: delivery of the last IPI is still pending (xAPIC mode only).
const DELIVERY_PENDING: u32 = 1 << 12;

/// A register, by its offset in the page.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(super) enum Register {
    Id = 0x20,
    Version = 0x30,
    Eoi = 0xb0,
    Spurious = 0xf0,
    Command = 0x300,
    /// In xAPIC mode only: in the other mode [`Register::Command`] has 64 bits.
    CommandHigh = 0x310,
    Timer = 0x320,
    Lint0 = 0x350,
    Lint1 = 0x360,
    Error = 0x370,
    InitialCount = 0x380,
    CurrentCount = 0x390,
    Divide = 0x3e0,
}

impl Register {
    /// Its number as a model-specific register: one for each 16 bytes of the page.
    fn msr(self) -> u32 {
        Msr::X2Apic as u32 + self as u32 / 16
    }

    fn address(self) -> usize {
        WINDOW as usize + self as usize
    }
}

/// Maps the page.
pub(super) fn map(kernel: &mut PageTable, frames: &mut dyn FrameAllocator) -> Result<(), MapError> {
    let page = Page {
        start: WINDOW,
        frame: PAGE,
        size: PageSize::Small,
        flags: Flags::WRITABLE | Flags::UNCACHED | Flags::NO_EXECUTE,
    };
    kernel.map(page, frames)
}

pub(super) fn read(register: Register) -> u32 {
    match Mode::of_kernel() {
        // SAFETY: the registers named here exist in x2APIC mode.
        Mode::X2Apic => unsafe { read_msr(register.msr()) as u32 },
        // SAFETY: `choose_mode` has mapped the page, which is the core's own APIC.
        Mode::XApic => unsafe {
            ptr::read_volatile(ptr::with_exposed_provenance::<u32>(register.address()))
        },
    }
}

pub(super) fn write(register: Register, value: u32) {
    match Mode::of_kernel() {
        // SAFETY: as above; no value here changes memory that Rust knows.
        Mode::X2Apic => unsafe { write_msr(register.msr(), value.into()) },
        // SAFETY: as above.
        Mode::XApic => unsafe {
            ptr::write_volatile(
                ptr::with_exposed_provenance_mut::<u32>(register.address()),
                value,
            )
        },
    }
}

/// Id of the calling core's APIC.
pub(super) fn id() -> u32 {
    match Mode::of_kernel() {
        Mode::X2Apic => read(Register::Id),
        Mode::XApic => read(Register::Id) >> 24,
    }
}

/// Sends an IPI. Stores before it are visible to the core that is interrupted.
pub(super) fn command(apic_id: u32, command: u32) {
    match Mode::of_kernel() {
        Mode::X2Apic => {
            fence();
            // SAFETY: as in `write`.
            unsafe {
                write_msr(
                    Register::Command.msr(),
                    command_and_target(apic_id, command),
                )
            };
        }
        Mode::XApic => {
            write(Register::CommandHigh, apic_id << 24);
            write(Register::Command, command);
            while read(Register::Command) & DELIVERY_PENDING != 0 {
                cpu::relax();
            }
        }
    }
}

/// The interrupt command register of x2APIC mode.
fn command_and_target(apic_id: u32, command: u32) -> u64 {
    u64::from(apic_id) << 32 | u64::from(command)
}

/// Completes all earlier accesses to memory. Writing some model-specific registers does not wait for
/// them (Intel SDM volume 3, 11.12.3).
pub(super) fn fence() {
    // SAFETY: it has no other effect.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from Intel SDM volume 3, table 11-6.
    #[test]
    fn registers_have_the_manuals_numbers() {
        for (register, msr) in [
            (Register::Id, 0x802),
            (Register::Version, 0x803),
            (Register::Eoi, 0x80b),
            (Register::Spurious, 0x80f),
            (Register::Command, 0x830),
            (Register::Timer, 0x832),
            (Register::Lint0, 0x835),
            (Register::Lint1, 0x836),
            (Register::Error, 0x837),
            (Register::InitialCount, 0x838),
            (Register::CurrentCount, 0x839),
            (Register::Divide, 0x83e),
        ] {
            assert_eq!(register.msr(), msr);
            assert_eq!(register.address() & 0xfff, register as usize);
        }
    }

    #[test]
    fn command_has_a_target_of_32_bits() {
        assert_eq!(command_and_target(0x1_0203, 0x4fe), 0x0001_0203_0000_04fe);
    }
}
