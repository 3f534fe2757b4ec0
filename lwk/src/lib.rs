//! The lightweight kernel: a Linux program on a quiet core.
//!
//! # What it is
//!
//! A node with a small kernel: it schedules a program's threads, manages its memory, and executes
//! the calls that concern only the program itself (futexes, signals, clocks). All others are
//! *delegated*: the base's Linux executes them in a proxy process that sees the program's memory at
//! the program's own addresses (protocol: `abi/include/insula_lwk.h`). So the program has the
//! base's files, sockets and terminal, and its cores run nothing but the program: no daemons, no
//! timer ticks, no interrupts that are not meant for it.
//!
//! # How it is started
//!
//! As any node. To the base it is one more kernel image: an ELF file like Linux' `vmlinux`, laid
//! out by `boot/` with `boot_params`, e820 and ACPI ([`boot_info`]). It writes its log in printk's
//! ring format ([`log`]), marks a panic as Linux does, counts the supervisor's health probes, and
//! handles the power button ([`power`]): so `insula logs`, `ps`, `stop`, crash reports and restarts
//! work as for any other node, by the same code.
//!
//! # How it runs
//!
//! Each core runs the same loop ([`cores`]) with interrupts off: run a thread until it traps,
//! handle the trap, choose the next thread. There is one stack for each core; a blocked thread is a
//! value in a queue. A core without work halts and is tickless: the timer runs only while threads
//! share a core or wait with a timeout.
//!
//! No core waits for the base. A delegated call is a state of its thread. What the kernel itself
//! has the base do (opening a program, forking the proxy, invalidating pages) is part of a handler,
//! a future that owns the thread ([`process::Flow::handler`]) and is polled by its core's loop,
//! which runs other threads meanwhile.
//!
//! | module | what |
//! |---|---|
//! | [`boot_info`] | boot parameters, memory map, ACPI tables |
//! | [`log`] | the kernel's log |
//! | [`memory`] | frames (buddy allocator), the kernel's heap, its page table |
//! | [`cores`] | starting cores, their loop, their interrupts |
//! | [`power`] | power button, power-off, panic |
//! | [`clock`] | time since boot |
//! | [`random`] | random numbers for address space layout |
//! | [`process`] | programs: memory, threads, futexes, signals, loading and exit |
//! | [`syscall`] | system calls, and the table of all: local, delegated, refused |
//! | [`delegation`] | memory shared with the base for delegation |

#![no_std]
#![cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "a host builds only what can be tested there")
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod boot_info;
pub mod clock;
pub mod cores;
pub mod delegation;
pub mod log;
pub mod memory;
pub mod power;
pub mod process;
pub mod random;
pub mod start;
pub mod syscall;
