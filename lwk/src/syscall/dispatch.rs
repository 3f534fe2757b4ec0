//! System calls: finding out who executes one.

use alloc::boxed::Box;

use crate::base::counters::{self, Counter};
use crate::model::errno::Errno;
use crate::syscall::call::{Handler, Kind};
use crate::syscall::delegate::{delegate_call, finish, set_result};
use crate::syscall::files::is_mirror_fd;
use crate::syscall::mounted::content;
use crate::syscall::mounted::route::route;
use crate::syscall::mounted::routed::Routed;
use crate::syscall::net;
use crate::syscall::signals::mask::delegate_masked;
use crate::syscall::table;
use crate::task::address_space::base_access::MissingPage;
use crate::task::flow::Flow;
use crate::task::thread::{InterruptedCall, Thread};

/// Executes the system call of a thread that has just entered the kernel, if it is one that never
/// waits, or reads what this kernel has of a server's file. Returns whether it was; its result is set.
#[must_use]
pub fn execute_immediate(thread: &mut Thread) -> bool {
    let number = thread.context.registers.rax;
    let Some(Handler::Immediate(handler)) = table::handler(number) else {
        return thread.process.has_mounts() && execute_cached(thread, number);
    };
    begin(thread, number);
    counters::count(Counter::LocalCalls);
    let result = handler(thread, thread.syscall_arguments());
    set_result(thread, result);
    true
}

fn execute_cached(thread: &mut Thread, number: u64) -> bool {
    let Some(result) = content::cached(thread, number, thread.syscall_arguments()) else {
        return false;
    };
    begin(thread, number);
    counters::count(Counter::LocalCalls);
    set_result(thread, Ok(result));
    true
}

fn begin(thread: &mut Thread, number: u64) {
    if thread.restarted_call.take().is_none() {
        thread.call_deadline_ns = None;
    }
    counters::count_call(number);
}

/// Executes the system call of a thread.
#[must_use]
pub fn execute(mut thread: Box<Thread>) -> Flow {
    let number = thread.context.registers.rax;
    let arguments = thread.syscall_arguments();
    begin(&mut thread, number);
    let Some(call) = table::find(number) else {
        return finish(thread, Err(Errno::ENOSYS));
    };
    if thread.process.has_mounts() && !is_mirror_fd(&thread, call, arguments) {
        let routed = match net::route::route(thread, number, arguments) {
            Routed::Base(same) => route(same, number, arguments),
            routed => routed,
        };
        match routed {
            Routed::Server(flow) => return flow,
            Routed::Base(same) => thread = same,
        }
    }
    match call.kind {
        Kind::Local => execute_here(thread, number, arguments),
        Kind::Refused { errno, .. } => finish(thread, Err(errno)),
        _ if is_mirror_fd(&thread, call, arguments) => finish(thread, Err(Errno::EBADF)),
        Kind::Delegated => delegate_call(thread, call, arguments),
        Kind::Masked(mask) => delegate_masked(thread, call, arguments, mask),
    }
}

/// Faults in the page of a base mapping that a call of a thread lacks, and makes the call again.
#[must_use]
pub fn retry(thread: Box<Thread>, missing: MissingPage) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        match thread.fault_in(missing.address, missing.access).await {
            Ok(()) => {
                // It keeps its deadline.
                thread.restarted_call = Some(InterruptedCall {
                    number: thread.context.registers.rax,
                    has_begun: false,
                });
                // Not here: the core may have the extended registers of another thread by now.
                thread.repeats_call = true;
                Flow::Continue(thread)
            }
            Err(Errno::ENOMEM) => finish(thread, Err(Errno::ENOMEM)),
            Err(_) => finish(thread, Err(Errno::EFAULT)),
        }
    })
}

fn execute_here(mut thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    counters::count(Counter::LocalCalls);
    match table::handler(number) {
        Some(Handler::Local(handler)) => handler(thread, arguments),
        Some(Handler::Immediate(handler)) => {
            let result = handler(&mut thread, arguments);
            finish(thread, result)
        }
        None => finish(thread, Err(Errno::ENOSYS)),
    }
}
