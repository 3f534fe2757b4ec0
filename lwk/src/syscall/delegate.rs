//! The ends of a call: delegated to the base, or finished here.

use alloc::boxed::Box;

use crate::base::counters::{self, Counter};
use crate::base::proxy_pointers::mask_proxy_pointers;
use crate::model::errno::{Errno, as_result};
use crate::model::number;
use crate::syscall::{proxy_mask, timeouts};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

/// Delegates a call to the base.
pub(super) fn delegate(mut thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    counters::count(Counter::DelegatedCalls);
    let mut arguments = mask_proxy_pointers(arguments, thread.process.pages().bounds());
    timeouts::set_remaining_time(&mut thread, number, &mut arguments);
    if may_change_uid(number) {
        thread.uid = None;
    }
    if proxy_mask::may_use_terminal(number) && proxy_mask::is_mask_outdated(&thread) {
        return Flow::handler(thread, move |mut thread| async move {
            proxy_mask::block_in_proxy(&mut thread).await;
            submit(thread, number, arguments)
        });
    }
    submit(thread, number, arguments)
}

fn submit(mut thread: Box<Thread>, number: u64, arguments: [u64; 6]) -> Flow {
    thread.interruptible_call = Some(number);
    thread.slot.submit(number, arguments);
    Flow::Delegated(thread)
}

/// Whether a call may change the thread's user id.
fn may_change_uid(call: u64) -> bool {
    matches!(
        call,
        number::SETUID | number::SETREUID | number::SETRESUID | number::UNSHARE | number::SETNS
    )
}

/// Finishes a call here: the thread goes on with its result.
pub(super) fn finish(mut thread: Box<Thread>, result: Result<u64, Errno>) -> Flow {
    thread.context.registers.rax = as_result(result);
    Flow::Continue(thread)
}
