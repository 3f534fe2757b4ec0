//! A core's guest, whatever the processor's kind of virtualization.

use insula_abi::monitor::MONITOR_REGISTERS;
use insula_bare::cpu;

use crate::area::Area;
use crate::exit::Exit;
use crate::share::{Entry, SharedGuest};

/// Selector and offset of the reset vector, less the high bits of its address.
pub const RESET_SELECTOR: u16 = 0xf000;
/// See [`RESET_SELECTOR`].
pub const RESET_RIP: u64 = 0xfff0;

/// Kinds of virtualization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// AMD's.
    Svm,
    /// Intel's.
    Vmx,
}

impl Kind {
    /// The calling core's. A core without either is taken for one of AMD's, and refused there.
    #[must_use]
    pub fn of_core() -> Self {
        match cpu::cpuid(1, 0).ecx & 1 << 5 {
            0 => Self::Svm,
            _ => Self::Vmx,
        }
    }
}

/// Why a core cannot run guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The processor lacks it.
    Missing(&'static str),
    /// Firmware has disabled virtualization.
    Disabled,
}

/// General registers but RAX and RSP.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the processor's names")]
pub struct GuestRegisters {
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub r8_to_r15: [u64; 8],
}

// Offsets that both enter.S use.
const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(GuestRegisters, rcx) == 8);
    assert!(offset_of!(GuestRegisters, rbp) == 40);
    assert!(offset_of!(GuestRegisters, r8_to_r15) == 48);
    assert!(size_of::<GuestRegisters>() == 112);
};

/// RIP, CS, RFLAGS, RSP and SS.
pub type Frame = [u64; 5];

/// A guest's registers as the words of a `struct pt_regs` (arch/x86/include/asm/ptrace.h of Linux), in no
/// system call that could be restarted.
#[must_use]
pub fn pt_regs(general: &GuestRegisters, rax: u64, frame: Frame) -> [u64; MONITOR_REGISTERS] {
    let [r8, r9, r10, r11, r12, r13, r14, r15] = general.r8_to_r15;
    let (rbp, rbx) = (general.rbp, general.rbx);
    let saved = [r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax];
    let arguments = [general.rcx, general.rdx, general.rsi, general.rdi];
    let original_rax = [u64::MAX];
    let mut words = saved
        .into_iter()
        .chain(arguments)
        .chain(original_rax)
        .chain(frame);
    core::array::from_fn(|_| words.next().unwrap_or_default())
}

/// The guest of the calling core.
pub trait Guest: Sized {
    /// Enables virtualization on the calling core, for good, and creates its guest, which halts at its
    /// reset vector.
    ///
    /// # Safety
    /// There is no other for this area, which is the calling core's.
    ///
    /// # Errors
    /// [`Unsupported`].
    unsafe fn enable(area: Area) -> Result<Self, Unsupported>;

    /// Has an INIT reset the calling core from now on, whose guest does not run any more.
    fn leave();

    /// Runs it until its next exit.
    fn run(&mut self) -> Exit;

    /// Resets it, as INIT does: it halts at its reset vector.
    fn reset(&mut self);

    /// Starts it at a page below 1 MiB, in real mode.
    fn start_up(&mut self, page: u8);

    /// Has it enter the node's kernel, in 64-bit mode.
    fn enter_kernel(&mut self, entry: u64, page_table: u64, argument: u64);

    /// What a paused guest was doing: plain integers. With [`crate::state`] it is all from which another
    /// core can go on.
    type Paused: Copy;

    /// Prepares it to go on from another core's state: adds this to its time stamp counter, and has
    /// all that shows which core it is exit: CPUID, and registers of its local APIC.
    fn disguise(&mut self, tsc_offset: u64);

    /// Has it halt, with no interrupt delivered, and returns what it was doing.
    #[must_use]
    fn pause(&mut self) -> Self::Paused;

    /// Has it go on where it was paused.
    fn resume(&mut self, paused: Self::Paused);

    /// Its registers as [`pt_regs`].
    fn pt_regs(&self) -> [u64; MONITOR_REGISTERS];

    /// Flushes translations before it runs again.
    fn flush(&mut self);

    /// Goes on behind the instruction that exited.
    fn skip_instruction(&mut self);

    /// RAX.
    fn rax(&self) -> u64;

    /// Sets RAX.
    fn set_rax(&mut self, value: u64);

    /// The other general registers.
    fn registers(&mut self) -> &mut GuestRegisters;

    /// CR4.
    fn cr4(&self) -> u64;

    /// Its CR3.
    fn page_table(&self) -> u64;

    /// The linear address of its instruction.
    fn instruction(&self) -> u64;

    /// Whether it is in 64-bit mode, or its compatibility mode.
    fn is_in_64_bit_mode(&self) -> bool;

    /// Whether a program runs, not the kernel.
    fn is_in_program(&self) -> bool;

    /// Has CPUID exit no more, until the next reset. Returns whether the processor can do so; then the
    /// instruction is executed again.
    fn pass_cpuid(&mut self) -> bool;

    /// Whether the permission map has a place for each register that the processor has. All others
    /// exit.
    const MAPS_ALL_REGISTERS: bool;

    /// Writes EFER. Returns whether the value is valid.
    #[must_use]
    fn write_efer(&mut self, value: u64) -> bool;

    /// Delivers an exception that has exited.
    fn deliver(&mut self, event: u64);

    /// Delivers an invalid opcode exception.
    fn inject_invalid_opcode(&mut self);

    /// Delivers a general protection fault.
    fn inject_general_protection(&mut self);

    /// Delivers an NMI, or keeps it until the handler of the one before returns.
    fn inject_nmi(&mut self);

    /// Whether an event is delivered as soon as it runs.
    fn has_event(&self) -> bool;

    /// Whether it would take an interrupt now.
    fn takes_interrupts(&self) -> bool;

    /// Has it take an interrupt that its local APIC has delivered, which it would now.
    fn deliver_interrupt(&mut self, vector: u8);

    /// Has it exit as soon as it takes interrupts and has taken those that are pending, or not.
    fn set_interrupt_window(&mut self, exits: bool);

    /// The guest of a lightweight kernel that shares the core.
    type Shared: SharedGuest;

    /// Creates that, to start at `entry`. `None`: this core cannot be shared, or not yet.
    ///
    /// # Safety
    /// There is no other for this area, which is the calling core's.
    unsafe fn start_shared(area: Area, entry: &Entry) -> Option<Self::Shared>;

    /// The handler of an NMI returns, and another one was kept: delivers it.
    fn interrupt_return(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_in_the_order_of_pt_regs() {
        let general = GuestRegisters {
            rbx: 5,
            rcx: 11,
            rdx: 12,
            rsi: 13,
            rdi: 14,
            rbp: 4,
            r8_to_r15: [9, 8, 7, 6, 3, 2, 1, 0],
        };
        let words = pt_regs(&general, 10, [16, 17, 18, 19, 20]);
        for (word, index) in words.into_iter().zip(0..) {
            let expected = if index == 15 { u64::MAX } else { index };
            assert_eq!(word, expected);
        }
    }
}
