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
//! out by `boot/` with `boot_params`, e820 and ACPI ([`hw::boot_info`]). It writes its log in
//! printk's ring format ([`hw::log`]), marks a panic as Linux does, counts the supervisor's health
//! probes, and handles the power button ([`hw::power`]): so `insula logs`, `ps`, `stop`, crash
//! reports and restarts work as for any other node, by the same code.
//!
//! # How it runs
//!
//! Each core runs the same loop ([`sched`]) with interrupts off: run a thread until it traps,
//! handle the trap, choose the next thread. There is one stack for each core; a blocked thread is a
//! value in a queue. A core without work halts and is tickless: the timer runs only while threads
//! share a core or wait with a timeout.
//!
//! No core waits for the base. A delegated call is a state of its thread. What the kernel itself
//! has the base do (opening a program, forking the proxy, invalidating pages) is part of a handler,
//! a future that owns the thread ([`task::flow::Flow::handler`]) and is polled by its core's loop,
//! which runs other threads meanwhile.
//!
//! # Layers
//!
//! A file imports only what is in its own folder or in one further up in this table, and no files
//! import each other in a circle (`tests/layers.rs`):
//!
//! | folder | what |
//! |---|---|
//! | [`hw`] | the node: boot information, memory, cores, TLBs, clock, log, power |
//! | [`model`] | what programs see of a kernel, as values: VMAs, signals, wait queues, ELF files |
//! | [`base`] | memory shared with the base: syscall slots, doorbells, counters |
//! | [`task`] | programs: processes, threads, address spaces; loading, fork, exit |
//! | [`syscall`] | entries of programs: system calls, exceptions; the table of all calls |
//! | [`sched`] | what each core runs: its loop, what waits there |
//! | [`start`] | boot, up to the loops of all cores |

#![no_std]
#![cfg_attr(
    not(target_os = "none"),
    allow(dead_code, reason = "a host builds only what can be tested there")
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod base;
pub mod hw;
pub mod model;
pub mod sched;
pub mod start;
pub mod syscall;
pub mod task;
