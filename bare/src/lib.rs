//! Hardware layer of Insula's own kernels: all assembly, all accesses to processor registers, and
//! most of the unsafe code. It holds no policy: what runs, and where memory comes from, is up to
//! the kernel.
//!
//! # How a kernel is entered
//!
//! There are two entry paths. Both end in the same place; [`Entry`] says which one was taken. (The
//! monitor in `vmm/` has its own: the base starts each of its cores, with its tables made already.)
//!
//! 1. **A start-up IPI.** The base resets a core and sends it, through the module's trampoline, to
//!    `bare_entry` (`boot.S`), as Linux is entered by its 64-bit boot protocol. So our kernels are
//!    images like any other: an ELF file linked to the top 2 GiB that can be loaded at any multiple
//!    of 2 MiB, described by `boot_params`, e820 and ACPI, started by `insula run`. The assembly
//!    builds a page table of the image and of the *direct map* (all memory, at
//!    [`memory::DIRECT_MAP`]), sets up a stack and calls the kernel.
//! 2. **A call from a running kernel** that passes its core on for a while: two kernels on one
//!    core ([`called`]). It is the same entry, with the address of a page that both share. The
//!    kernel leaves by a call, too, into code of the other one, which stores its registers and
//!    loads them when it is entered again: so to both the other one is a function.
//!
//! The first core starts the other ones ([`start`]) through a page of the node's own low memory: no
//! core of the base takes part.
//!
//! # How a kernel runs
//!
//! Each core has one kernel stack and runs the kernel with interrupts off. A program is entered by
//! a call, `UserContext::run`, which returns when the program needs the kernel and says why: a
//! [`Trap`]. So a kernel is a loop:
//!
//! ```text
//! loop {
//!     let thread = /* choose one */;
//!     match thread.context.run() {
//!         Trap::Syscall => ...
//!         Trap::Exception { .. } => ...
//!         Trap::Interrupt(vector) => ...
//!     }
//! }
//! ```
//!
//! No state of a program is ever kept on a kernel stack, so to switch threads is to choose another
//! context, and a thread migrates to another core by moving its value there.
//!
//! Interrupts are taken in programs, where they end `run`, and in [`cpu::wait_for_interrupt`],
//! where they go to the kernel's handler. All interrupts, and the exceptions that can occur at any
//! instruction, have stacks of their own (IST). An exception in the kernel is a bug and panics.
//!
//! The kernel is compiled without floating point, so a program's extended state ([`ExtendedState`])
//! stays in the registers until another thread runs on the core; so do its bases of FS and GS.
//!
//! The kernel never uses a program's addresses: it looks the page up in the program's page table
//! ([`paging`]) and goes through the direct map. So no access of the kernel can fault, whatever
//! pointer a program passes.
//!
//! | module | what |
//! |---|---|
//! | [`memory`] | physical addresses, frames, the direct map |
//! | [`paging`] | page tables of 4 KiB, 2 MiB and 1 GiB |
//! | [`apic`] | the local APIC: interrupts to other cores, end of interrupt, timer |
//! | [`start`] | bringing up the other cores |
//! | [`called`] | sharing the core with the kernel that has it |
//! | [`user`], [`extended_state`], [`segment_bases`] | a thread's registers; entering a program |
//! | [`ports`] | I/O ports that programs may use |
//! | [`trap`] | exceptions and interrupts |
//! | [`per_core`] | per-core data |
//! | [`program_mode`] | registers of a core that runs programs |
//! | [`mitigation`] | mitigations of side channels between programs |
//! | [`cpu`] | registers of the processor |
//!
//! The crate compiles for any x86-64 host, without the assembly, so that its users can be tested
//! there.

#![no_std]
#![allow(
    unsafe_code,
    reason = "this crate is where the kernels' unsafe code lives"
)]

mod arch;
pub mod memory;

pub use arch::{apic, cpu, mitigation, paging, per_core, trap};
#[cfg(feature = "boot-protocol")]
pub use arch::{called, start};
#[cfg(feature = "programs")]
pub use arch::{extended_state, ports, program_mode, segment_bases, user};
#[cfg(feature = "programs")]
pub use extended_state::ExtendedState;
pub use memory::{FRAME_SIZE, PhysAddr};
#[cfg(feature = "programs")]
pub use segment_bases::SegmentBases;
#[cfg(feature = "programs")]
pub use user::{Registers, Trap, UserContext};

/// How a kernel was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// By a start-up IPI, on a core of its own.
    Started {
        /// Physical address of Linux' `struct boot_params`.
        boot_params: PhysAddr,
        /// Physical address at which the image was loaded.
        image: PhysAddr,
    },
    /// By a call from the kernel that owns the core and gets it back.
    Called {
        /// Physical address of Linux' `struct boot_params`.
        boot_params: PhysAddr,
        /// Physical address at which the image was loaded.
        image: PhysAddr,
    },
}
