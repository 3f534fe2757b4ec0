//! Futexes: wait queues of threads.
//!
//! [`Futexes`] is the pure part, tested on the host: who waits for what, and in which order they
//! are woken.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved between lists by its address"
)]

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::signals::ThreadHandle;
use super::{Thread, process_table};
use crate::cores;

/// Key of a wait queue: a memory's id and an address; or a shared-memory object ([`SHARED`]) and an
/// offset.
pub type Key = (u64, u64);

/// Bit set in the first word of the key of a shared-memory object.
pub(super) const SHARED: u64 = 1 << 63;

impl super::Process {
    /// Returns the key of a thread that waits for all others to exit. No futex has it.
    pub(crate) fn exec_key(&self) -> Key {
        (self.pages().number(), 1 << 63)
    }
}

/// A waiter.
#[derive(Debug)]
pub struct Waiter<T> {
    /// The waiting task.
    pub task: T,
    /// FUTEX_WAIT_BITSET: which wake operations apply.
    pub bitset: u32,
    /// Timeout, in ns since boot.
    pub deadline_ns: Option<u64>,
    /// Real-time priority. Higher ranks are woken first, equal ranks in the order of their arrival.
    rank: u32,
}

impl<T> Waiter<T> {
    /// Creates a waiter of rank 0.
    pub fn new(task: T, bitset: u32, deadline_ns: Option<u64>) -> Self {
        Self {
            task,
            bitset,
            deadline_ns,
            rank: 0,
        }
    }
}

/// All wait queues.
#[derive(Debug)]
pub struct Futexes<T> {
    queues: BTreeMap<Key, VecDeque<Waiter<T>>>,
    /// Owners of the locks that queues are for.
    owners: BTreeMap<Key, u64>,
    /// Owners whose waiters have changed.
    changed_owners: BTreeSet<u64>,
}

impl<T> Default for Futexes<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Futexes<T> {
    /// Creates it without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
            owners: BTreeMap::new(),
            changed_owners: BTreeSet::new(),
        }
    }

    /// Adds a waiter, behind those of the same or a higher rank.
    pub fn wait(&mut self, key: Key, waiter: Waiter<T>) {
        let queue = self.queues.entry(key).or_default();
        let place = queue.partition_point(|other| other.rank >= waiter.rank);
        queue.insert(place, waiter);
        self.mark_changed(key);
    }

    /// Sets the owner of a lock, if it has waiters.
    pub fn set_owner(&mut self, key: Key, owner: u64) {
        if !self.queues.contains_key(&key) {
            return;
        }
        let before = self.owners.insert(key, owner);
        self.changed_owners.extend(before);
        self.changed_owners.insert(owner);
    }

    /// Returns the highest rank among waiters for locks that `owner` owns; 0 without waiters.
    #[must_use]
    pub fn top_waiter_rank(&self, owner: u64) -> u32 {
        let held = self.owners.iter().filter(|(_, one)| **one == owner);
        let first = held.filter_map(|(key, _)| self.queues.get(key)?.front());
        first.map(|waiter| waiter.rank).max().unwrap_or(0)
    }

    /// Changes the rank of the waiter that `is_chosen` accepts.
    pub fn set_rank(&mut self, rank: u32, is_chosen: impl Fn(&T) -> bool) {
        let place = |queue: &VecDeque<Waiter<T>>| queue.iter().position(|one| is_chosen(&one.task));
        let mut queues = self.queues.iter_mut();
        let found = queues.find_map(|(key, queue)| {
            let at = place(queue)?;
            (queue[at].rank != rank).then_some(())?;
            Some((*key, queue.remove(at)?))
        });
        if let Some((key, waiter)) = found {
            self.wait(key, Waiter { rank, ..waiter });
        }
    }

    /// Takes the owners whose waiters have changed.
    pub fn take_changed_owners(&mut self) -> BTreeSet<u64> {
        core::mem::take(&mut self.changed_owners)
    }

    fn mark_changed(&mut self, key: Key) {
        self.changed_owners.extend(self.owners.get(&key));
    }

    /// Removes the first `most` waiters that match `bitset`.
    pub fn wake(&mut self, key: Key, most: u32, bitset: u32) -> Vec<T> {
        self.take(key, |waiter, woken| {
            woken < most as usize && waiter.bitset & bitset != 0
        })
    }

    /// Returns the first waiter, and whether there are more.
    #[must_use]
    pub fn first(&self, key: Key) -> (Option<&T>, bool) {
        let queue = self.queues.get(&key);
        let first = queue.and_then(|queue| Some(&queue.front()?.task));
        (first, queue.is_some_and(|queue| queue.len() > 1))
    }

    /// Removes the first `wake` waiters, and moves `most` of the others to another queue. Returns
    /// those removed, and the number moved.
    pub fn requeue(&mut self, from: Key, to: Key, wake: u32, most: u32) -> (Vec<T>, u32) {
        let woken = self.wake(from, wake, u32::MAX);
        let mut moved = Vec::new();
        if let Some(queue) = self.queues.get_mut(&from) {
            moved.extend(queue.drain(..queue.len().min(most as usize)));
        }
        self.remove_if_empty(from);
        let count = moved.len() as u32;
        for waiter in moved {
            self.wait(to, waiter);
        }
        (woken, count)
    }

    /// Removes the waiters that `is_own` accepts and whose timeout has expired.
    pub fn expire(&mut self, now_ns: u64, is_own: impl Fn(&T) -> bool) -> Vec<T> {
        let is_due = |waiter: &Waiter<T>| {
            is_own(&waiter.task) && waiter.deadline_ns.is_some_and(|at| at <= now_ns)
        };
        let keys: Vec<Key> = self.queues.keys().copied().collect();
        let all = keys.into_iter();
        all.flat_map(|key| self.take(key, |waiter, _| is_due(waiter)))
            .collect()
    }

    /// Removes the waiters that `is_chosen` accepts, from all queues.
    pub fn wake_chosen(&mut self, is_chosen: impl Fn(&T) -> bool) -> Vec<T> {
        let keys: Vec<Key> = self.queues.keys().copied().collect();
        let all = keys.into_iter();
        let is_chosen = |waiter: &Waiter<T>| is_chosen(&waiter.task);
        all.flat_map(|key| self.take(key, |waiter, _| is_chosen(waiter)))
            .collect()
    }

    /// Returns the earliest timeout of the waiters that `is_own` accepts.
    #[must_use]
    pub fn next_deadline(&self, is_own: impl Fn(&T) -> bool) -> Option<u64> {
        let waiters = self.queues.values().flatten();
        let own = waiters.filter(|waiter| is_own(&waiter.task));
        own.filter_map(|waiter| waiter.deadline_ns).min()
    }

    /// Removes the waiters of a queue that `is_chosen` accepts; it gets the number removed so far.
    fn take(&mut self, key: Key, is_chosen: impl Fn(&Waiter<T>, usize) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let Some(queue) = self.queues.get_mut(&key) else {
            return taken;
        };
        let mut at = 0;
        while at < queue.len() {
            if !is_chosen(&queue[at], taken.len()) {
                at += 1;
                continue;
            }
            taken.extend(queue.remove(at).map(|waiter| waiter.task));
        }
        self.remove_if_empty(key);
        taken
    }

    fn remove_if_empty(&mut self, key: Key) {
        self.mark_changed(key);
        if self.queues.get(&key).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&key);
            self.owners.remove(&key);
        }
    }
}

/// Earliest timeout of each core's waiters. Changed only with the queues locked.
static DEADLINES: [AtomicU64; insula_abi::NODE_CPUS_MAX] =
    [const { AtomicU64::new(NEVER) }; insula_abi::NODE_CPUS_MAX];
const NEVER: u64 = u64::MAX;

fn deadline_of(core: u32) -> &'static AtomicU64 {
    &DEADLINES[core as usize % insula_abi::NODE_CPUS_MAX]
}

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
    if let Some(deadline_ns) = deadline_ns {
        deadline_of(core).fetch_min(deadline_ns, Ordering::AcqRel);
    }
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
pub(crate) fn expire(core: u32, now_ns: u64) {
    let is_of = |thread: &Thread| thread.core == core;
    let mut waiting = waiting();
    let expired = waiting.expire(now_ns, |thread| is_of(thread));
    let next_ns = waiting.next_deadline(|thread| is_of(thread));
    deadline_of(core).store(next_ns.unwrap_or(NEVER), Ordering::Release);
    propagate_boosts(&mut waiting);
    drop(waiting);
    resume_all(expired, super::errno::Errno::ETIMEDOUT.as_result());
}

/// Returns the earliest timeout of a core's waiters, which may have been woken since.
pub(crate) fn next_deadline(core: u32) -> Option<u64> {
    match deadline_of(core).load(Ordering::Acquire) {
        NEVER => None,
        deadline_ns => Some(deadline_ns),
    }
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
    resume_all(woken, super::errno::Errno::EINTR.as_result());
}

fn resume_all(threads: Vec<Box<Thread>>, result: u64) -> u64 {
    let count = threads.len() as u64;
    for mut thread in threads {
        let copy = thread.wake_result.take();
        thread.context.registers.rax = copy.unwrap_or(result);
        cores::enqueue(thread);
    }
    count
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    const A: Key = (1, 0x1000);
    const B: Key = (1, 0x2000);

    fn waiter(task: u32, bitset: u32, deadline_ns: Option<u64>) -> Waiter<u32> {
        Waiter::new(task, bitset, deadline_ns)
    }

    fn ranked(task: u32, rank: u32) -> Waiter<u32> {
        Waiter {
            rank,
            ..waiter(task, 1, None)
        }
    }

    fn three() -> Futexes<u32> {
        let mut futexes = Futexes::new();
        for (task, bitset) in [(1, 1), (2, 2), (3, 3)] {
            futexes.wait(A, waiter(task, bitset, None));
        }
        futexes
    }

    #[test]
    fn waiters_are_woken_in_order() {
        let mut futexes = three();
        assert_eq!(futexes.wake(B, 9, u32::MAX), vec![]);
        assert_eq!(
            (futexes.first(A), futexes.first(B)),
            ((Some(&1), true), (None, false))
        );
        assert_eq!(futexes.wake(A, 2, u32::MAX), [1, 2]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), [3]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), vec![]);
    }

    #[test]
    fn higher_ranks_are_woken_first() {
        let mut futexes = Futexes::new();
        for (task, rank) in [(1, 0), (2, 5), (3, 0), (4, 5), (5, 9)] {
            futexes.wait(A, ranked(task, rank));
        }
        futexes.set_rank(7, |&task| task == 3);
        assert_eq!(futexes.wake(A, 9, u32::MAX), [5, 3, 2, 4, 1]);
    }

    #[test]
    fn owners_are_boosted_to_the_rank_of_their_waiters() {
        let mut futexes = Futexes::new();
        futexes.set_owner(A, 7);
        assert!(
            futexes.take_changed_owners().is_empty(),
            "there are no waiters"
        );
        futexes.wait(A, ranked(1, 3));
        futexes.set_owner(A, 7);
        futexes.wait(B, ranked(2, 5));
        futexes.set_owner(B, 7);
        assert_eq!(futexes.take_changed_owners(), [7].into());
        assert_eq!(
            (futexes.top_waiter_rank(7), futexes.top_waiter_rank(8)),
            (5, 0)
        );
        futexes.wait(A, ranked(3, 6));
        assert_eq!(futexes.take_changed_owners(), [7].into());
        assert_eq!(futexes.top_waiter_rank(7), 6);
        // The first waiter acquires the lock: from now on the other one waits for it.
        assert_eq!(futexes.wake(A, 1, u32::MAX), [3]);
        futexes.set_owner(A, 8);
        assert_eq!(futexes.take_changed_owners(), [7, 8].into());
        assert_eq!(
            (futexes.top_waiter_rank(7), futexes.top_waiter_rank(8)),
            (5, 3)
        );
        // Owners without a removed waiter may be reported as well.
        assert_eq!(futexes.wake_chosen(|&task| task == 1), [1]);
        assert_eq!(futexes.take_changed_owners(), [7, 8].into());
        assert_eq!(
            (futexes.top_waiter_rank(7), futexes.top_waiter_rank(8)),
            (5, 0)
        );
    }

    #[test]
    fn bitsets_select_waiters() {
        let mut futexes = three();
        assert_eq!(futexes.wake(A, 1, 2), [2]);
        assert_eq!(futexes.wake(A, 9, 2), [3]);
        assert_eq!(futexes.wake(A, 9, 1), [1]);
    }

    #[test]
    fn waiters_are_requeued() {
        let mut futexes = three();
        assert_eq!(futexes.requeue(A, B, 1, 1), (vec![1], 1));
        assert_eq!(futexes.wake(B, 9, u32::MAX), [2]);
        assert_eq!(futexes.wake(A, 9, u32::MAX), [3]);
    }

    #[test]
    fn expired_timeouts_wake() {
        let mut futexes = Futexes::new();
        futexes.wait(A, waiter(1, 1, Some(50)));
        futexes.wait(B, waiter(2, 1, Some(40)));
        futexes.wait(B, waiter(3, 1, None));
        let (all, odd) = (|_: &u32| true, |task: &u32| !task.is_multiple_of(2));
        assert_eq!(futexes.next_deadline(all), Some(40));
        assert_eq!(futexes.next_deadline(odd), Some(50));
        assert_eq!(futexes.expire(39, all), vec![]);
        assert_eq!(futexes.expire(40, odd), vec![]);
        assert_eq!(futexes.expire(40, all), [2]);
        assert_eq!(futexes.next_deadline(all), Some(50));
        assert_eq!(futexes.wake_chosen(|&task| task == 3), [3]);
        assert_eq!(futexes.wake_chosen(|_| true), [1]);
        assert_eq!(futexes.next_deadline(all), None);
    }
}
