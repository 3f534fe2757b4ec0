//! Futexes: threads in wait queues.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use crate::hw::cores;
use crate::model::errno::Errno;
use crate::model::futex::{Futexes, Key, Waiter};
use crate::model::thread_handle::ThreadHandle;
use crate::task::core_deadlines::CoreDeadlines;
use crate::task::process::Process;
use crate::task::thread::Thread;
use crate::task::{process_table, run_queue};

impl Process {
    /// Returns the key of a thread that waits for all others to exit. No futex has it.
    pub(crate) fn exec_key(&self) -> Key {
        (self.pages().number(), 1 << 63)
    }
}

/// Timeouts of the waiters.
static DEADLINES: CoreDeadlines = CoreDeadlines::new();

static WAITING: spin::Mutex<Futexes<Box<Thread>>> = spin::Mutex::new(Futexes::new());

/// Locks all wait queues. The owner of the lock may wait for an address space, and so for this core
/// to handle an IPI.
fn waiting() -> spin::MutexGuard<'static, Futexes<Box<Thread>>> {
    cores::wait_for(|| WAITING.try_lock())
}

/// Wakes the first waiter with result 0, if `try_assign` agrees; it gets the waiter's thread id,
/// and whether there are more waiters.
pub(crate) fn hand_off(key: Key, try_assign: impl FnOnce(Option<u64>, bool) -> bool) {
    let mut waiting = waiting();
    let (next, more) = waiting.first(key);
    let next = next.map(|thread| thread.id);
    if !try_assign(next, more) {
        return;
    }
    let taken = waiting.wake(key, 1, u32::MAX);
    if let Some(next) = next {
        waiting.set_owner(key, next);
    }
    propagate_boosts(&mut waiting);
    drop(waiting);
    resume_all(taken, 0);
}

/// Sets the owner of a lock that has waiters.
pub(crate) fn set_owner(key: Key, owner: u64) {
    let mut waiting = waiting();
    waiting.set_owner(key, owner);
    propagate_boosts(&mut waiting);
}

/// Boosts owners of locks to the priority of their waiters, along chains of locks.
fn propagate_boosts(waiting: &mut Futexes<Box<Thread>>) {
    /// Maximum length of a chain, as on Linux (`kernel.max_lock_depth`): there may be cycles.
    const CHAIN_MAX: usize = 1024;
    for _ in 0..CHAIN_MAX {
        let changed_owners = waiting.take_changed_owners();
        if changed_owners.is_empty() {
            return;
        }
        for owner in changed_owners {
            let rank = waiting.top_waiter_rank(owner);
            if let Some(handle) = process_table::handle(owner)
                && handle.set_boost(rank)
            {
                update_rank(waiting, &handle);
            }
        }
    }
}

/// Updates a thread's rank as a waiter, and interrupts its core, after its priority has changed.
fn update_rank(waiting: &mut Futexes<Box<Thread>>, handle: &Arc<ThreadHandle>) {
    let rank = handle.priority().realtime();
    waiting.set_rank(rank, |thread| Arc::ptr_eq(&thread.handle, handle));
    cores::interrupt(handle.core.load(Ordering::Relaxed));
}

/// Applies a new priority of a thread.
pub(crate) fn update_priority(handle: &Arc<ThreadHandle>) {
    let mut waiting = waiting();
    update_rank(&mut waiting, handle);
    propagate_boosts(&mut waiting);
}

/// Blocks a thread, unless `should_wait` declines; no wakeup is lost in between.
pub(crate) fn wait(
    key: Key,
    waiter: Waiter<Box<Thread>>,
    should_wait: impl FnOnce(&mut Thread) -> bool,
) -> Option<Box<Thread>> {
    wait_for_owner(key, waiter, |thread| should_wait(thread).then_some(None))
}

/// Like [`wait`]; `should_wait` also returns the owner, if the queue is for a lock.
pub(crate) fn wait_for_owner(
    key: Key,
    mut waiter: Waiter<Box<Thread>>,
    should_wait: impl FnOnce(&mut Thread) -> Option<Option<u64>>,
) -> Option<Box<Thread>> {
    let mut waiting = waiting();
    let Some(owner) = should_wait(&mut waiter.task) else {
        return Some(waiter.task);
    };
    waiter.rank = waiter.task.handle.priority().realtime();
    let (core, deadline_ns) = (waiter.task.core, waiter.deadline_ns);
    waiting.wait(key, waiter);
    if let Some(owner) = owner {
        waiting.set_owner(key, owner);
        propagate_boosts(&mut waiting);
    }
    DEADLINES.add(core, deadline_ns);
    None
}

/// Wakes threads with result 0. Returns their number.
pub(crate) fn wake(key: Key, most: u32, bitset: u32) -> u64 {
    let woken = {
        let mut waiting = waiting();
        let woken = waiting.wake(key, most, bitset);
        propagate_boosts(&mut waiting);
        woken
    };
    resume_all(woken, 0)
}

/// Has all waiters make their calls again, as if a signal had come that concerns nobody.
pub(crate) fn wake_to_repeat(key: Key) {
    let woken = waiting().wake(key, u32::MAX, u32::MAX);
    resume_all(woken, Errno::EINTR.as_result());
}

/// Wakes and moves waiters, if `is_unchanged` agrees. Returns the numbers woken and moved.
pub(crate) fn requeue(
    from: Key,
    to: Key,
    counts: (u32, u32),
    is_unchanged: impl FnOnce() -> bool,
) -> Option<(u64, u64)> {
    let mut waiting = waiting();
    if !is_unchanged() {
        return None;
    }
    let (woken, moved) = waiting.requeue(from, to, counts.0, counts.1);
    propagate_boosts(&mut waiting);
    drop(waiting);
    Some((resume_all(woken, 0), moved.into()))
}

/// Wakes waiters of a core whose timeout has expired, with ETIMEDOUT.
pub(super) fn expire(core: u32, now_ns: u64) {
    let is_of = |thread: &Thread| thread.core == core;
    let mut waiting = waiting();
    let expired = waiting.expire(now_ns, |thread| is_of(thread));
    let next_ns = waiting.next_deadline(|thread| is_of(thread));
    DEADLINES.set(core, next_ns);
    propagate_boosts(&mut waiting);
    drop(waiting);
    resume_all(expired, Errno::ETIMEDOUT.as_result());
}

/// Returns the earliest timeout of a core's waiters, which may have been woken since.
pub(super) fn next_deadline(core: u32) -> Option<u64> {
    DEADLINES.next(core)
}

/// Wakes the waiters of a process that `is_chosen` accepts, with EINTR.
pub(super) fn interrupt_waiters(process: u64, is_chosen: impl Fn(&Thread) -> bool) {
    let is_of = |thread: &Thread| thread.process.pages().number() == process;
    let woken = {
        let mut waiting = waiting();
        let woken = waiting.wake_chosen(|thread| is_of(thread) && is_chosen(thread));
        propagate_boosts(&mut waiting);
        woken
    };
    resume_all(woken, Errno::EINTR.as_result());
}

fn resume_all(threads: Vec<Box<Thread>>, result: u64) -> u64 {
    let count = threads.len() as u64;
    for mut thread in threads {
        let copy = thread.wake_result.take();
        thread.context.registers.rax = copy.unwrap_or(result);
        run_queue::enqueue(thread);
    }
    count
}
