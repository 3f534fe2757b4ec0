//! The monitor: runs a confined node's kernel as a guest, on the node's own cores.
//!
//! # What it is for
//!
//! A node of isolation `direct` has its cores to itself and is trusted to stay in its part of the
//! machine. A *confined* node (isolation `vmm`) is held there by the processor's virtualization: what
//! its kernel does wrong hurts itself. The kernel, its tables and its memory are the same as of a
//! direct node, and nothing is shared out or emulated beyond what that takes. There is no scheduler (a
//! core runs one guest core for good), no device model, and no instruction decoder.
//!
//! # How a core runs
//!
//! ```text
//! insula.ko: INIT, start-up IPI ==> every core of the node: entry.S, vcpu::run
//!     the first core: the guest enters the node's kernel, in 64-bit mode
//!     the others:     the guest halts at its reset vector, until a start-up IPI of that kernel
//!
//! loop {
//!     exit = guest.run()          VMRUN, VMRESUME: the node's kernel runs; interrupts go straight to it
//!     answer the exit, or record a violation and end the node
//! }
//! ```
//!
//! Interrupts are not intercepted, and the guest uses its core's local APIC itself, in x2APIC mode, where
//! each register is an MSR with a permission of its own: timer, end of interrupt and task priority cost
//! no exit. What exits:
//!
//! | exit | answer |
//! |---|---|
//! | write to the interrupt command register | sent on, if to a core of the node, or a doorbell that the module has declared: see [`policy::icr`] |
//! | another MSR | by a list: see [`policy::msr`] |
//! | I/O port | as if there were no such device, or the node's reset: see [`policy::port`]; configuration space of its PCI functions: see [`policy::pci`] |
//! | CPUID, until the core's first program executes it | the processor's, without what the node may not use: see [`policy::cpuid`] |
//! | memory outside the nested page table | violation; tried again first, if the module has just changed the table. In a copy of a node also what it writes first: the module is asked for a page |
//! | instruction of virtualization | violation |
//! | NMI | a request of another core or the module, or the guest's own: see [`requests`] |
//! | debug exception, alignment check | delivered: an instruction that raises them without end lets nothing else in |
//! | triple fault | the node's reset |
//!
//! # A core that two kernels share
//!
//! A lightweight kernel can share a core with the node's. It is a second guest of the core, which goes
//! first and is not confined: without nested paging and permission maps, so its entry and exit are all
//! it costs. While it runs, interrupts exit: they stay pending, the node's kernel gets them natively
//! as soon as it runs, and exits when it has interrupts on again (by a virtual interrupt that is never
//! delivered). If it had them off before, they just stay pending.
//!
//! # How it talks to the base
//!
//! By words in its memory (`insula_monitor.h`), which the module reads and writes, and NMIs. To stop the
//! node the module needs no help: an INIT resets a core, also while its guest runs. What ends the node is
//! recorded once, in the header; the module polls it as it polls a node's own power-off byte.
//!
//! # Files
//!
//! | file | what |
//! |---|---|
//! | [`vcpu`] | a core's loop: answers exits |
//! | [`area`] | the core's area and the header, shared with the module |
//! | [`function`] | the node's PCI functions, in that memory |
//! | [`requests`] | what cores and module ask of a core |
//! | [`policy`] | what is allowed: pure functions |
//! | [`guest`] | a core's guest, whatever the processor's kind |
//! | [`exit`] | exits, whatever the kind |
//! | [`start_state`] | the state in which a guest's core starts |
//! | [`state`] | the state that a paused core leaves, and another one goes on from |
//! | [`extended`] | extended states of a core (XSAVE) in it |
//! | [`share`] | a lightweight kernel that shares a core |
//! | [`exchange`] | registers of both kernels that no kind of virtualization switches |
//! | [`svm`] | AMD's virtualization (SVM) |
//! | [`vmx`] | Intel's virtualization (VMX) |
//!
//! The crate compiles for any x86-64 host, without the assembly, so that its pure parts are tested
//! there.

#![cfg_attr(not(test), no_std)]
#![allow(
    unsafe_code,
    reason = "a monitor accesses memory and registers that Rust does not know"
)]

pub mod area;
pub mod exchange;
pub mod exit;
pub mod extended;
pub mod function;
pub mod guest;
pub mod policy;
pub mod requests;
pub mod share;
pub mod start_state;
pub mod state;
pub mod svm;
pub mod vcpu;
pub mod vmx;

#[cfg(target_os = "none")]
mod assembly {
    core::arch::global_asm!(include_str!("entry.S"), options(att_syntax));
    core::arch::global_asm!(include_str!("svm/enter.S"), options(att_syntax));
    core::arch::global_asm!(include_str!("vmx/enter.S"), options(att_syntax));
}

/// Banner by which `kimage` knows the image.
#[used]
pub static BANNER: &str = concat!("Insula monitor version ", env!("CARGO_PKG_VERSION"), "\n");
