//! Threads that are blocked in this kernel: for a futex, for a message or its reply.

use crate::hw::clock;
use crate::task::thread::Thread;
use crate::task::{endpoint, endpoint_registry, futex};

/// Wakes the blocked threads of a process that `is_chosen` accepts, with EINTR.
pub(super) fn interrupt(process: u64, is_chosen: impl Fn(&Thread) -> bool) {
    futex::interrupt_waiters(process, &is_chosen);
    endpoint_registry::interrupt_waiters(process, &is_chosen);
}

/// Returns the earliest timeout of a core's blocked threads, which may have been woken since.
pub(crate) fn next_deadline(core: u32) -> Option<u64> {
    let all = [futex::next_deadline(core), endpoint::next_deadline(core)];
    all.into_iter().flatten().min()
}

/// Wakes blocked threads of a core whose timeout has expired, with ETIMEDOUT.
pub(crate) fn expire(core: u32) {
    let now_ns = clock::now_ns();
    let is_due = |deadline_ns: Option<u64>| deadline_ns.is_some_and(|at_ns| at_ns <= now_ns);
    if is_due(futex::next_deadline(core)) {
        futex::expire(core, now_ns);
    }
    if is_due(endpoint::next_deadline(core)) {
        endpoint_registry::expire(core, now_ns);
    }
}
