//! User context of a thread: its registers, and running it.

use core::mem::offset_of;

use super::cpu;
#[cfg(target_os = "none")]
use super::machine_check;
use super::trap::{FIRST_INTERRUPT, NMI, PAGE_FAULT, SYSCALL};

/// End of the addresses that programs can use.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// Flags that a program may set: CF, PF, AF, ZF, SF, TF, DF, OF, AC, ID.
const RFLAGS_PROGRAM: u64 =
    0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x800 | 0x4_0000 | 0x20_0000;
/// Flags that are always set in a program: the reserved one, and IF.
const RFLAGS_ALWAYS: u64 = 0x2 | 0x200;

/// The registers of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the processor's names")]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub rsp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// Reason why a program entered the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// System call: number in RAX, arguments in RDI, RSI, RDX, R10, R8, R9.
    Syscall,
    /// Exception.
    Exception {
        /// Vector.
        vector: u8,
        /// Error code.
        error: u64,
        /// Address of a page fault; else 0.
        address: u64,
    },
    /// Interrupt, with its vector; also an NMI that is the base's, on a shared core.
    Interrupt(u8),
}

/// User context of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserContext {
    /// General registers.
    pub registers: Registers,
    vector: u64,
    error: u64,
}

// Offsets that trap.S uses.
const _: () = {
    assert!(offset_of!(UserContext, registers) == 0);
    assert!(offset_of!(Registers, rsp) == 56);
    assert!(offset_of!(Registers, r15) == 120);
    assert!(offset_of!(Registers, rip) == 128);
    assert!(offset_of!(Registers, rflags) == 136);
    assert!(offset_of!(UserContext, vector) == 144);
    assert!(offset_of!(UserContext, error) == 152);
};

#[cfg(target_os = "none")]
unsafe extern "C" {
    fn bare_enter_user(context: *mut UserContext);
}

impl UserContext {
    /// Whether the context can be entered: RIP is an address of programs. IRETQ to a non-canonical
    /// address would fault in the kernel.
    #[must_use]
    pub fn can_run(&self) -> bool {
        self.registers.rip < USER_END
    }

    /// Runs the program until it enters the kernel. A machine check that concerns other cores is
    /// handled here.
    ///
    /// # Panics
    /// If it cannot be entered (see [`UserContext::can_run`]), or the core has a fatal machine
    /// check.
    #[cfg(target_os = "none")]
    pub fn run(&mut self) -> Trap {
        loop {
            self.run_once();
            if self.vector != machine_check::VECTOR {
                return self.trap();
            }
            machine_check::handle();
        }
    }

    #[cfg(target_os = "none")]
    fn run_once(&mut self) {
        assert!(
            self.can_run(),
            "cannot enter a program at {:#x}",
            self.registers.rip
        );
        let flags = &mut self.registers.rflags;
        *flags = *flags & RFLAGS_PROGRAM | RFLAGS_ALWAYS;
        // SAFETY: 1. the area's context pointer is used only until this call returns, and `self` is
        // borrowed for that long. 2. The program runs at level 3 with its own page table.
        unsafe { bare_enter_user(self) }
    }

    /// Reason of the last entry.
    #[must_use]
    pub fn trap(&self) -> Trap {
        match self.vector {
            SYSCALL => Trap::Syscall,
            vector if vector == u64::from(NMI) => Trap::Interrupt(NMI),
            vector if vector < FIRST_INTERRUPT => Trap::Exception {
                vector: vector as u8,
                error: self.error,
                address: match vector {
                    PAGE_FAULT => cpu::fault_address(),
                    _ => 0,
                },
            },
            vector => Trap::Interrupt(vector as u8),
        }
    }
}

#[cfg(not(target_os = "none"))]
const _: (u64, u64) = (RFLAGS_PROGRAM, RFLAGS_ALWAYS);
