//! The lightweight kernel: a Linux program on a quiet core.
//!
//! # What it is
//!
//! A node whose kernel does little: it gives a program's threads cores, memory, and what touches
//! only the program itself (futexes, signals, clocks). All else is *delegated*: the base's Linux
//! executes the call, in a proxy process that sees the program's memory at the program's own
//! addresses (`abi/include/insula_lwk.h` tells how). So the program has the base's files, sockets and
//! terminal, and its cores have no other work than the program: no daemons, no timer ticks, no
//! interrupts but those that are meant for it.
//!
//! # How it starts
//!
//! As any node. To the base it is one more kernel image: an ELF file like Linux' `vmlinux`, laid out
//! by `boot/` with `boot_params`, e820 and ACPI ([`world`]). It keeps its log in printk's ring format
//! ([`log`]), marks a panic as Linux does, counts the supervisor's interrupts, and hears
//! the power button ([`power`]): so `insula logs`, `ps`, `stop`, crash reports and restarts
//! work as for any other node, by the same code.
//!
//! # How it runs
//!
//! On each core the same loop ([`cores`]), with interrupts off: run a thread until it traps, deal
//! with why, choose the next. One stack for each core; a thread that waits is a value in a queue. A
//! core without work halts, and does not wake by itself: there is a timer only while threads share a
//! core.
//!
//! | module | what |
//! |---|---|
//! | [`world`] | what the machine is, from boot parameters and ACPI |
//! | [`log`] | the kernel's log |
//! | [`memory`] | frames (buddy system), the kernel's heap, its page table |
//! | [`cores`] | bringing them up, their loop, their interrupts |
//! | [`power`] | power button, power-off, panic |
//! | [`clock`] | time since the start |
//! | [`random`] | numbers by which programs are laid out |
//! | [`process`] | programs: memory, threads, futexes, beginning and end |
//! | [`calls`] | system calls, and the table of them all: local, delegated, refused |
//! | [`delegation`] | what the base and this kernel share for that |

#![no_std]
#![cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "on a host there is only what can be tested there")
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod calls;
pub mod clock;
pub mod cores;
pub mod delegation;
pub mod log;
pub mod memory;
pub mod power;
pub mod process;
pub mod random;
pub mod start;
pub mod world;
