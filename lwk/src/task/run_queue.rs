//! Run queues: the ready threads of each core, from which other cores may steal.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::hw::cores::{CORES_MAX, number, wake};
use crate::model::scheduling::Priority;
use crate::task::idle;
use crate::task::thread::Thread;

/// Run queue of each core: its ready threads.
static READY: [spin::Mutex<VecDeque<Box<Thread>>>; CORES_MAX] =
    [const { spin::Mutex::new(VecDeque::new()) }; CORES_MAX];

/// Length of each run queue, written with the queue locked. A core that reads 0 need not lock the
/// queue.
static READY_COUNTS: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

fn ready_count(core: u32) -> &'static AtomicU32 {
    &READY_COUNTS[core as usize % CORES_MAX]
}

/// Changes a core's run queue.
fn change_ready<T>(core: u32, change: impl FnOnce(&mut VecDeque<Box<Thread>>) -> T) -> T {
    let mut queue = ready(core).lock();
    let result = change(&mut queue);
    ready_count(core).store(queue.len() as u32, Ordering::SeqCst);
    result
}

fn ready(core: u32) -> &'static spin::Mutex<VecDeque<Box<Thread>>> {
    &READY[core as usize % CORES_MAX]
}

/// Puts a ready thread into its core's run queue, behind others of its priority.
pub(crate) fn enqueue(thread: Box<Thread>) {
    let (core, allowed) = (thread.core, thread.handle.cores());
    change_ready(core, |queue| queue.push_back(thread));
    wake(core);
    idle::kick_idle(core, &allowed);
}

/// Puts a preempted thread into its core's run queue, before others of its priority.
pub(crate) fn enqueue_front(thread: Box<Thread>) {
    let (core, allowed) = (thread.core, thread.handle.cores());
    change_ready(core, |queue| queue.push_front(thread));
    wake(core);
    idle::kick_idle(core, &allowed);
}

/// Returns the position of the thread to run next. A thread's priority may change while it is
/// queued.
fn next(queue: &VecDeque<Box<Thread>>) -> Option<(usize, Priority)> {
    highest_priority(queue.iter().enumerate())
}

/// Returns the position of the next thread that may run on core `core`, if more than `reserved` are
/// queued.
fn next_for(queue: &VecDeque<Box<Thread>>, reserved: usize, core: u32) -> Option<usize> {
    let all = queue.iter().enumerate();
    let allowed = all.filter(|(_, thread)| thread.handle.may_run_on(core));
    let next = highest_priority(allowed).filter(|_| queue.len() > reserved);
    next.map(|(place, _)| place)
}

/// Returns the first of the threads with the highest priority.
fn highest_priority<'a>(
    threads: impl Iterator<Item = (usize, &'a Box<Thread>)>,
) -> Option<(usize, Priority)> {
    threads
        .map(|(place, thread)| (place, thread.handle.priority()))
        .reduce(|best, other| match other.1.is_above(&best.1) {
            true => other,
            false => best,
        })
}

/// Whether more than `reserved` threads are ready on a core, and one of them may run on core
/// `other`.
pub(crate) fn has_ready_for(core: u32, reserved: usize, other: u32) -> bool {
    has_more(core, reserved) && next_for(&ready(core).lock(), reserved, other).is_some()
}

/// Dequeues that thread.
pub(crate) fn take_ready_for(core: u32, reserved: usize, other: u32) -> Option<Box<Thread>> {
    if !has_more(core, reserved) {
        return None;
    }
    change_ready(core, |queue| {
        let place = next_for(queue, reserved, other)?;
        queue.remove(place)
    })
}

/// Whether more than `reserved` threads seem to be ready on a core; does not lock.
pub(crate) fn has_more(core: u32, reserved: usize) -> bool {
    ready_count(core).load(Ordering::SeqCst) as usize > reserved
}

/// Returns the priority of the next ready thread of this core.
pub(crate) fn next_priority() -> Option<Priority> {
    if !has_more(number(), 0) {
        return None;
    }
    let queue = ready(number()).lock();
    next(&queue).map(|(_, priority)| priority)
}

/// Dequeues the next ready thread of this core.
pub(crate) fn take_next() -> Option<Box<Thread>> {
    if !has_more(number(), 0) {
        return None;
    }
    change_ready(number(), |queue| {
        let (place, _) = next(queue)?;
        queue.remove(place)
    })
}
