//! The ends of a call: delegated to the base, or finished here.

use alloc::boxed::Box;

use crate::base::counters::{self, Counter};
use crate::base::proxy_pointers::mask_proxy_pointers;
use crate::hw::clock;
use crate::model::errno::{Errno, as_result};
use crate::syscall::call::Call;
use crate::syscall::{proxy_mask, timeouts};
use crate::task::address_space::base_access::{self, Retry};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Delegates a call to the base, and does what its row in the table says.
pub(super) fn delegate_call(
    mut thread: Box<Thread>,
    call: &'static Call,
    arguments: [u64; 6],
) -> Flow {
    let mut arguments = begin(&thread, arguments);
    timeouts::set_remaining_time(&mut thread, call, &mut arguments);
    if call.sets_uid {
        thread.uid = None;
    }
    let is_outdated = match call.uses_terminal {
        true => proxy_mask::is_mask_outdated(&thread),
        false => proxy_mask::is_mask_of_fds_outdated(&thread),
    };
    if is_outdated {
        return Flow::handler(thread, move |mut thread| async move {
            proxy_mask::block_in_proxy(&mut thread).await;
            submit(thread, call.number, arguments)
        });
    }
    submit(thread, call.number, arguments)
}

/// Delegates a local call to the base after all.
pub(super) fn delegate(thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    let arguments = begin(&thread, arguments);
    submit(thread, number, arguments)
}

/// The same, with one argument that this kernel has replaced: its index, and what the base gets.
pub(super) fn delegate_replacing(
    thread: Box<Thread>,
    number: u64,
    arguments: [u64; 6],
    (at, value): (usize, u64),
) -> Flow {
    let mut arguments = begin(&thread, arguments);
    arguments[at] = value;
    submit(thread, number, arguments)
}

/// Counts a call that will be delegated, and returns the arguments for the base.
fn begin(thread: &Thread, arguments: [u64; 6]) -> [u64; 6] {
    counters::count(Counter::DelegatedCalls);
    let process = &thread.process;
    mask_proxy_pointers(arguments, process.pages().bounds(), process.region())
}

/// Time in which no signal cancels a call that is made again, as it had not begun. Else signals
/// that come faster than the base begins calls would keep it from ever being made.
const BEGIN_TIMEOUT_NS: u64 = 50_000_000;

fn submit(mut thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    let at = thread.context.registers.rip;
    let is_made_again = thread.unbegun_call.take_if(|call| *call == at).is_some();
    thread.cancel_from_ns = match is_made_again {
        true => clock::now_ns() + BEGIN_TIMEOUT_NS,
        false => 0,
    };
    thread.interruptible_call = Some(number);
    thread.slot.submit(number, arguments);
    Flow::Delegated(thread)
}

/// Finishes a call here: the thread goes on with its result, or makes the call again when a page
/// that it needs has been faulted in.
pub(super) fn finish(mut thread: Box<Thread>, result: Result<u64, Errno>) -> Flow {
    set_result(&mut thread, result);
    Flow::Continue(thread)
}

/// Sets the result of a call, or the page that it lacks.
pub(super) fn set_result(thread: &mut Thread, result: Result<u64, Errno>) {
    if result == Err(Errno::EBASEPAGE) {
        thread.missing_page = base_access::take_missing().map(|page| (page, Retry::Call));
        if thread.missing_page.is_some() {
            return;
        }
    }
    let result = result.map_err(|error| match error {
        Errno::EBASEPAGE => Errno::EFAULT,
        error => error,
    });
    thread.context.registers.rax = as_result(result);
}
