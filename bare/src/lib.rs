//! The ground that Insula's own kernels stand on: everything that needs assembly or touches a
//! processor's registers, and most of what is unsafe. No policy: what runs, and where memory comes
//! from, is the kernel's business.
//!
//! # How a kernel comes to life
//!
//! There are two ways in. Both end in the same place, [`Entry`] tells which one it was:
//!
//! 1. **A start-up IPI.** The base has reset a core and sent it, by way of the module's trampoline,
//!    to `bare_entry` (`boot.S`), just as Linux is entered by its 64-bit boot protocol. So our
//!    kernels are images like any other: an ELF file linked to the top 2 GiB that can lie at any
//!    multiple of 2 MiB, described by `boot_params`, e820 and ACPI, started by `insula run`. The
//!    assembly makes a page table of the image and of the *direct map* (all memory, at
//!    [`memory::DIRECT_MAP`]), takes a stack and calls the kernel.
//! 2. **A call from a live kernel**, which hands over its core for a while: two kernels on one core.
//!    It gives a *save area* with all that it wants back (control registers, descriptor tables, the
//!    machine registers that the syscall path uses, and where to go on). The seam for it is
//!    [`Entry::Called`] and the rule that all state of a core lies in one place, its
//!    [`CoreArea`](arch::core_area::CoreArea): to enter is to load from it, to leave is to load from the save area.
//!    No kernel uses it yet.
//!
//! The other cores are started by the first ([`start`]), through a page of the
//! node's own low memory: no core of the base takes part.
//!
//! # How a kernel runs
//!
//! One kernel stack for each core, interrupts off. A program is entered by a call,
//! [`UserContext::run`], which returns when the program needs the kernel, and says
//! why: a [`Trap`]. So a kernel is a loop:
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
//! Nothing of a program ever lies on a kernel stack, so changing from one thread to another is
//! choosing another context, and a thread moves to another core by moving its value there.
//!
//! Interrupts are taken in programs, where they end `run`, and in [`cpu::wait_for_interrupt`], where
//! they are told to the kernel by its handler. All interrupts, and the four exceptions that may come
//! at any moment, have stacks of their own. An exception in the kernel is a bug and ends it.
//!
//! The kernel is compiled without floating point, so a program's extended registers
//! ([`ExtendedState`]) stay where they are until another thread takes the core.
//!
//! Programs' memory is never reached through the program's addresses, but by looking up the
//! program's own page table ([`paging`]) and going through the direct map: no access of the kernel
//! can fault, whatever pointer a program gives.
//!
//! | module | what |
//! |---|---|
//! | [`memory`] | physical addresses, frames, the direct map |
//! | [`paging`] | page tables of 4 KiB, 2 MiB and 1 GiB |
//! | [`apic`] | the local APIC: interrupts to other cores, end of interrupt, timer |
//! | [`start`] | bringing up the other cores |
//! | [`user`], [`extended`] | a thread's registers; entering it |
//! | [`trap`] | exceptions and interrupts |
//! | [`core_area`] | what belongs to one core |
//! | [`mitigation`] | what programs could find of each other in a core |
//! | [`cpu`] | registers of the processor |
//!
//! It compiles for any x86-64 host, without the assembly, so that what builds on it can be tested
//! there.

#![no_std]
#![allow(
    unsafe_code,
    reason = "this crate is where the kernels' unsafe code lives"
)]

mod arch;
pub mod memory;

pub use arch::{apic, core_area, cpu, extended, mitigation, paging, start, trap, user};
pub use extended::ExtendedState;
pub use memory::{FRAME_SIZE, PhysAddr};
pub use user::{Registers, Trap, UserContext};

/// How a kernel was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// By a start-up IPI, on a core of its own.
    Started {
        /// Physical address of Linux' `struct boot_params`.
        boot_params: PhysAddr,
        /// Where the image's first byte lies.
        image: PhysAddr,
    },
    /// By a call from a kernel that has the core, and wants it back.
    Called {
        /// What that kernel wants back.
        save_area: PhysAddr,
    },
}
