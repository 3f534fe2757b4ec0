//! The state that a paused core leaves in its area, from which another core goes on.
//!
//! ```text
//! struct insula_monitor_state | Registers | what the guest was doing | extended state (XSAVE)
//! 0                            32          1 KiB                     8                        24 KiB
//! ```
//!
//! A guest uses most of the processor itself, so its registers are those that the core has while the
//! monitor runs, which uses none of them. An interrupt that is in service cannot be taken elsewhere, so
//! such a state is marked.
//!
//! Source: Intel SDM volume 3, chapter 11 for the local APIC.

use core::arch::asm;
use core::mem::size_of;

use insula_abi::monitor::{MONITOR_STATE_MAGIC, MONITOR_STATE_SIZE, MonitorState};
use insula_bare::{apic, cpu};

use crate::area::Area;
use crate::extended;
use crate::policy::msr::{self, LocalVector, LocalVectors};
use crate::policy::saved::Takes;

/// Offsets of the parts.
const REGISTERS: usize = size_of::<MonitorState>();
const PAUSED: usize = 0x400;
const EXTENDED: usize = 0x2000;
/// Bytes for the extended state.
const ROOM: usize = MONITOR_STATE_SIZE as usize - EXTENDED;
/// First of eight registers each: interrupts in service, and pending.
const IN_SERVICE: u32 = 0x810;
const PENDING: u32 = 0x820;
const SELF_IPI: u32 = 0x83f;
const INITIAL_COUNT: u32 = 0x838;
const CURRENT_COUNT: u32 = 0x839;
const DEADLINE: u32 = 0x6e0;
/// Registers of the local APIC, in the order in which they are written: it is enabled first.
const APIC: [u32; 10] = [
    0x80f, 0x808, 0x83e, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837, 0x82f,
];
/// Others: speculation control, extended states of the kernel, shadow stacks, core number.
const MSRS: [u32; 10] = [
    0x48,
    0xda0,
    0x6a0,
    0x6a2,
    0x6a4,
    0x6a5,
    0x6a6,
    0x6a7,
    0x6a8,
    0xc000_0103,
];

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Registers {
    /// Enabled states; 0 without XSAVE.
    xcr0: u64,
    debug: [u64; 4],
    msrs: [u64; MSRS.len()],
    apic: [u64; APIC.len()],
    pending: [u64; 8],
    initial_count: u64,
    current_count: u64,
    /// By the guest's time stamp counter.
    deadline: u64,
}

const _: () = assert!(REGISTERS + size_of::<Registers>() <= PAUSED);

/// A time of one time stamp counter by another one; 0 is no time.
#[must_use]
pub const fn shift(at: u64, offset: u64) -> u64 {
    match at {
        0 => 0,
        _ => at.wrapping_add(offset),
    }
}

/// Saves the state of the calling core, whose guest was doing `paused`.
///
/// # Safety
/// 1. `P` is plain integers, without padding. 2. The core's registers are still the guest's.
pub unsafe fn save<P: Copy>(area: Area, paused: &P) {
    const { assert!(PAUSED + size_of::<P>() <= EXTENDED) };
    let (at, offset) = (area.state(), area.header().tsc_offset());
    let tsc = cpu::time_stamp().wrapping_add(offset);
    // SAFETY: 1. the area has the state's bytes, which are the core's own and aligned. 2. As promised
    // by the caller.
    unsafe {
        let registers = Registers::read(offset);
        at.add(REGISTERS).cast::<Registers>().write(registers);
        at.add(PAUSED).cast::<P>().write(*paused);
        let fits = extended::save(at.add(EXTENDED), ROOM);
        let in_service: u64 = (0..8).map(|part| cpu::read_msr(IN_SERVICE + part)).sum();
        at.cast::<MonitorState>().write(MonitorState {
            magic: if fits { MONITOR_STATE_MAGIC } else { 0 },
            tsc,
            running: area.is_running().into(),
            in_service,
        });
    }
}

/// Loads the state in a core's area, and returns what the guest was doing; `None` if its core waited for
/// its start.
///
/// # Safety
/// 1. [`save`] wrote it, with this type, on a processor that has no less. 2. The core's guest does not run.
pub unsafe fn load<P: Copy>(area: Area, offset: u64) -> Option<P> {
    let at = area.state();
    // SAFETY: as promised by the caller; the area has the state's bytes, which nobody changes.
    unsafe {
        let head = at.cast::<MonitorState>().read();
        assert_eq!(
            head.magic, MONITOR_STATE_MAGIC,
            "there is no state to go on from"
        );
        let registers = at.add(REGISTERS).cast::<Registers>().read();
        extended::load(at.add(EXTENDED), registers.xcr0);
        registers.write(offset);
        (head.running != 0).then(|| at.add(PAUSED).cast::<P>().read())
    }
}

impl Registers {
    /// Reads those of the calling core.
    ///
    /// # Safety
    /// Its APIC is in x2APIC mode.
    unsafe fn read(offset: u64) -> Self {
        // SAFETY: reading changes nothing, and the processor has the registers.
        unsafe {
            // Before the pending interrupts: a timer that expires in between is among these then. The other
            // way round it would be lost, and with it the next one, which its handler sets.
            let [initial_count, current_count] =
                [INITIAL_COUNT, CURRENT_COUNT].map(|register| cpu::read_msr(register));
            let deadline = match apic::has_deadline() {
                true => shift(cpu::read_msr(DEADLINE), offset),
                false => 0,
            };
            Self {
                xcr0: match extended::has_xsave() {
                    true => extended::read_xcr0(),
                    false => 0,
                },
                debug: read_debug(),
                msrs: MSRS.map(|register| read_if(register, has_msr)),
                apic: APIC.map(|register| read_if(register, has_apic)),
                pending: core::array::from_fn(|part| cpu::read_msr(PENDING + part as u32)),
                initial_count,
                current_count,
                deadline,
            }
        }
    }

    /// Writes them, and raises the interrupts that were pending.
    ///
    /// # Safety
    /// They were read on a processor that has no less, and no guest uses the core's.
    unsafe fn write(&self, offset: u64) {
        // SAFETY: as promised by the caller. The monitor uses none of them.
        unsafe {
            write_debug(self.debug);
            let takes = takes();
            for (register, value) in MSRS.into_iter().zip(self.msrs) {
                if has_msr(register) {
                    cpu::write_msr(register, takes.msr(register, value));
                }
            }
            let has = LocalVectors {
                last: apic::last_local_vector(),
                has_deadline: apic::has_deadline(),
            };
            for (register, value) in APIC.into_iter().zip(self.apic) {
                if let Some(value) = allowed(register, value, has) {
                    cpu::write_msr(register, takes.msr(register, value));
                }
            }
            for vector in self.pending_vectors() {
                cpu::write_msr(SELF_IPI, vector);
            }
            cpu::write_msr(INITIAL_COUNT, takes.msr(INITIAL_COUNT, self.ticks_left()));
            if apic::has_deadline() {
                cpu::write_msr(DEADLINE, shift(self.deadline, offset.wrapping_neg()));
            }
        }
    }

    fn pending_vectors(&self) -> impl Iterator<Item = u64> + '_ {
        // The processor has no interrupts below 16.
        (16..256).filter(|&vector| self.pending[vector as usize / 32] >> (vector % 32) & 1 != 0)
    }

    /// Of the timer: until its next interrupt. A periodic one begins anew. One that has expired fires once
    /// more: its interrupt may not have been pending yet (an emulator's comes late), and a kernel that loses
    /// it never sets the next one. If it was handled already, another one does no harm.
    fn ticks_left(&self) -> u64 {
        const PERIODIC: u64 = 1 << 17;
        let is_periodic = APIC
            .into_iter()
            .zip(self.apic)
            .any(|(register, value)| register == 0x832 && value & PERIODIC != 0);
        match self.initial_count {
            0 => 0,
            count if is_periodic => count,
            _ => self.current_count.max(1),
        }
    }
}

/// What the registers of this core take.
#[must_use]
pub fn takes() -> Takes {
    const VERSION: u32 = 0x803;
    let features = cpu::cpuid(7, 0);
    // SAFETY: the core's local APIC is in x2APIC mode, and has the register; reading changes nothing.
    let version = unsafe { cpu::read_msr(VERSION) };
    Takes {
        address_bits: cpu::cpuid(0x8000_0008, 0).eax >> 8 & 0xff,
        features: features.edx,
        speculation_features: match features.eax {
            0 | 1 => 0,
            _ => cpu::cpuid(7, 2).edx,
        },
        supervisor_states: match extended::has_xsave() {
            true => extended::supervisor_states(),
            false => 0,
        },
        branch_tracking: features.edx & 1 << 20 != 0,
        broadcast_suppression: version & 1 << 24 != 0,
    }
}

/// Whether the processor has an MSR of [`MSRS`].
fn has_msr(register: u32) -> bool {
    match register {
        0x48 => cpu::cpuid(7, 0).edx & 1 << 26 != 0,
        0xda0 => cpu::cpuid(0xd, 1).eax & 1 << 3 != 0 && extended::has_xsave(),
        0x6a0..=0x6a8 => cpu::cpuid(7, 0).ecx & 1 << 7 != 0,
        _ => cpu::cpuid(0x8000_0001, 0).edx & 1 << 27 != 0,
    }
}

/// Whether the local APIC has a register of [`APIC`].
fn has_apic(register: u32) -> bool {
    let least = match register {
        0x834 => 4,
        0x833 => 5,
        0x82f => 6,
        _ => 0,
    };
    apic::last_local_vector() >= least
}

/// What may be written to a register of [`APIC`]: in an entry of the local vector table no more than a
/// guest may, as a state may come from a file. `None`: nothing, the entry stays masked.
const fn allowed(register: u32, value: u64, has: LocalVectors) -> Option<u64> {
    const ENTRIES: core::ops::RangeInclusive<u32> = 0x832..=0x837;
    const MACHINE_CHECK: u32 = 0x82f;
    let is_entry =
        register >= *ENTRIES.start() && register <= *ENTRIES.end() || register == MACHINE_CHECK;
    match msr::local_vector(register, value, has) {
        _ if !is_entry => Some(value),
        LocalVector::Write(value) => Some(value),
        LocalVector::Fault | LocalVector::Violation => None,
    }
}

/// Reads an MSR; 0 if there is none.
///
/// # Safety
/// `has` tells whether there is.
unsafe fn read_if(register: u32, has: fn(u32) -> bool) -> u64 {
    match has(register) {
        // SAFETY: as promised by the caller; reading changes nothing.
        true => unsafe { cpu::read_msr(register) },
        false => 0,
    }
}

/// Reads the addresses of breakpoints.
fn read_debug() -> [u64; 4] {
    let (zero, one, two, three): (u64, u64, u64, u64);
    // SAFETY: reading changes nothing.
    unsafe {
        asm!("mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3",
             out(reg) zero, out(reg) one, out(reg) two, out(reg) three,
             options(nomem, nostack, preserves_flags));
    }
    [zero, one, two, three]
}

/// Writes them.
fn write_debug([zero, one, two, three]: [u64; 4]) {
    // SAFETY: the monitor has no breakpoint enabled.
    unsafe {
        asm!("mov dr0, {}", "mov dr1, {}", "mov dr2, {}", "mov dr3, {}",
             in(reg) zero, in(reg) one, in(reg) two, in(reg) three,
             options(nomem, nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shifted_both_ways() {
        let (guest, host) = (1_000_u64, u64::MAX - 5);
        let offset = guest.wrapping_sub(host);
        assert_eq!(shift(host, offset), guest);
        assert_eq!(shift(guest, offset.wrapping_neg()), host);
        assert_eq!(shift(0, offset), 0, "no time");
    }

    #[test]
    fn pending_vectors_are_found() {
        let mut registers = Registers::default();
        registers.pending[7] = 1 << 12;
        registers.pending[1] = 1 << 31;
        let vectors: Vec<_> = registers.pending_vectors().collect();
        assert_eq!(vectors, [63, 0xec]);
    }

    #[test]
    fn a_state_sets_no_more_of_the_apic_than_a_guest_may() {
        let has = LocalVectors {
            last: 6,
            has_deadline: false,
        };
        let (priority, timer, counters) = (0x808, 0x832, 0x834);
        assert_eq!(allowed(priority, 0x20, has), Some(0x20));
        assert_eq!(allowed(timer, 0x2_10ec, has), Some(0x2_00ec));
        assert_eq!(allowed(counters, 0x400, has), Some(0x400), "NMI");
        assert_eq!(allowed(counters, 0x200, has), None, "SMI");
        assert_eq!(allowed(0x82f, 0x500, has), None, "INIT");
        assert_eq!(
            allowed(counters, 0x400, LocalVectors { last: 3, ..has }),
            None
        );
    }

    #[test]
    fn a_timer_goes_on() {
        let mut registers = Registers {
            initial_count: 100,
            current_count: 40,
            ..Registers::default()
        };
        assert_eq!(registers.ticks_left(), 40);
        registers.current_count = 0;
        assert_eq!(registers.ticks_left(), 1, "it may have expired just now");
        registers.initial_count = 0;
        assert_eq!(registers.ticks_left(), 0, "it was stopped");
        registers.initial_count = 100;
        registers.apic[3] = 1 << 17 | 0xec;
        assert_eq!(APIC[3], 0x832);
        assert_eq!(registers.ticks_left(), 100);
    }
}
