//! Calls that wait for signals.

use alloc::boxed::Box;

use crate::model::errno::Errno;
use crate::model::futex::Waiter;
use crate::model::number::{PAUSE, RT_SIGSUSPEND, RT_SIGTIMEDWAIT};
use crate::model::signals::set::UNBLOCKABLE;
use crate::syscall::deadline;
use crate::syscall::delegate::finish;
use crate::syscall::proxy_mask::{block_in_proxy, is_mask_of_fds_outdated};
use crate::syscall::signals::arguments::{checked_size, read_set};
use crate::syscall::signals::mask::block_during_call;
use crate::task::flow::Flow;
use crate::task::futex;
use crate::task::thread::Thread;

/// Waits for a signal, until a deadline if any. The delivery of signals sets the
/// result.
fn wait(mut thread: Box<Thread>, number: u64, deadline_ns: Option<u64>) -> Flow {
    thread.extended.save();
    wait_saved(thread, number, deadline_ns)
}

/// The same, once the proxy's thread does not block any more what is waited for.
fn wait_unblocked(thread: Box<Thread>, number: u64, deadline_ns: Option<u64>) -> Flow {
    if !is_mask_of_fds_outdated(&thread) {
        return wait(thread, number, deadline_ns);
    }
    Flow::handler(thread, move |mut thread| async move {
        block_in_proxy(&mut thread).await;
        // What was pending has been caught before the proxy replied.
        thread.process.take_base_signals();
        wait_saved(thread, number, deadline_ns)
    })
}

/// Waits; the thread's extended state is saved.
fn wait_saved(mut thread: Box<Thread>, number: u64, deadline_ns: Option<u64>) -> Flow {
    thread.interruptible_call = Some(number);
    // Not an address, so no futex has this key.
    let key = (thread.process.pages().number(), !thread.id);
    let waiter = Waiter::new(thread, u32::MAX, deadline_ns);
    let should_wait =
        |thread: &mut Thread| !thread.handle.is_signal_pending() && !thread.must_not_block();
    match futex::wait(key, waiter, should_wait) {
        None => Flow::Blocked,
        Some(thread) => finish(thread, Err(Errno::EINTR)),
    }
}

/// pause(2).
pub(crate) fn pause(thread: Box<Thread>, _: [u64; 6]) -> Flow {
    wait(thread, PAUSE, None)
}

/// rt_sigsuspend(2).
pub(crate) fn suspend(mut thread: Box<Thread>, [set, size, ..]: [u64; 6]) -> Flow {
    let set = checked_size(size).and_then(|()| read_set(&mut thread, set));
    match set {
        Ok(set) => {
            block_during_call(&mut thread, set);
            wait_unblocked(thread, RT_SIGSUSPEND, None)
        }
        Err(error) => finish(thread, Err(error)),
    }
}

/// rt_sigtimedwait(2).
pub(crate) fn timed_wait(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [set, to, timeout, size, ..] = a;
    let arguments = checked_size(size).and_then(|()| {
        let set = read_set(&mut thread, set)? & !UNBLOCKABLE;
        Ok((set, deadline::deadline(&mut thread, timeout)?))
    });
    let (set, deadline_ns) = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return finish(thread, Err(error)),
    };
    thread.sigwait = Some((set, to));
    thread.process.signals().await_signals(thread.id, set);
    wait_unblocked(thread, RT_SIGTIMEDWAIT, deadline_ns)
}
