//! System calls: finding out who executes one.

use alloc::boxed::Box;

use crate::base::counters::{self, Counter};
use crate::model::errno::Errno;
use crate::syscall::call::{Handler, Kind};
use crate::syscall::delegate::{delegate, finish};
use crate::syscall::files::is_mirror_fd;
use crate::syscall::signals::mask::delegate_masked;
use crate::syscall::table;
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Executes the system call of a thread.
#[must_use]
pub fn execute(mut thread: Box<Thread>) -> Flow {
    if thread.restarted_call.take().is_none() {
        thread.call_deadline_ns = None;
    }
    let registers = &thread.context.registers;
    let number = registers.rax;
    let arguments = [
        registers.rdi,
        registers.rsi,
        registers.rdx,
        registers.r10,
        registers.r8,
        registers.r9,
    ];
    counters::count_call(number);
    match table::find(number).map(|call| call.kind) {
        Some(Kind::Local) => execute_here(thread, number, arguments),
        Some(Kind::Delegated) if is_mirror_fd(&thread, number, arguments) => {
            finish(thread, Err(Errno::EBADF))
        }
        Some(Kind::Delegated) => delegate(thread, number, arguments),
        Some(Kind::Masked { argument }) => delegate_masked(thread, number, arguments, argument),
        Some(Kind::Refused { errno, .. }) => finish(thread, Err(errno)),
        None => finish(thread, Err(Errno::ENOSYS)),
    }
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
