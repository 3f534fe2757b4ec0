//! Futexes: threads that wait until another says that a word of their memory has changed.
//!
//! [`Futexes`] is the pure part, tested on the host: who waits for what, in which order they are woken.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved from list to list, by its address"
)]

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::Thread;
use crate::cores;

/// What is waited for: a process and an address.
pub type Key = (u64, u64);

/// One that waits.
#[derive(Debug)]
pub struct Waiter<T> {
    /// Who.
    pub who: T,
    /// By which of a futex's 32 groups it can be woken.
    pub groups: u32,
    /// When it is woken in any case, in ns of the kernel's clock.
    pub deadline_ns: Option<u64>,
}

/// All who wait.
#[derive(Debug)]
pub struct Futexes<T> {
    queues: BTreeMap<Key, VecDeque<Waiter<T>>>,
}

impl<T> Default for Futexes<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Futexes<T> {
    /// Nobody waits.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            queues: BTreeMap::new(),
        }
    }

    /// Has one wait, behind all others.
    pub fn wait(&mut self, key: Key, waiter: Waiter<T>) {
        self.queues.entry(key).or_default().push_back(waiter);
    }

    /// Takes out the first `most` that are in one of `groups`.
    pub fn wake(&mut self, key: Key, most: u32, groups: u32) -> Vec<T> {
        self.take(key, |waiter, woken| {
            woken < most as usize && waiter.groups & groups != 0
        })
    }

    /// Takes out the first `wake`, and has `most` of the others wait for something else. Answers
    /// who was taken out, and how many were moved.
    pub fn requeue(&mut self, from: Key, to: Key, wake: u32, most: u32) -> (Vec<T>, u32) {
        let woken = self.wake(from, wake, u32::MAX);
        let mut moved = VecDeque::new();
        if let Some(queue) = self.queues.get_mut(&from) {
            moved.extend(queue.drain(..queue.len().min(most as usize)));
        }
        self.tidy(from);
        let count = moved.len() as u32;
        if count > 0 {
            self.queues.entry(to).or_default().append(&mut moved);
        }
        (woken, count)
    }

    /// Takes out all whose time has come.
    pub fn expire(&mut self, now_ns: u64) -> Vec<T> {
        let is_due = |waiter: &Waiter<T>| waiter.deadline_ns.is_some_and(|at| at <= now_ns);
        let keys: Vec<Key> = self.queues.keys().copied().collect();
        let all = keys.into_iter();
        all.flat_map(|key| self.take(key, |waiter, _| is_due(waiter)))
            .collect()
    }

    /// Takes out all of a process.
    pub fn wake_process(&mut self, process: u64) -> Vec<T> {
        let keys = self.queues.range((process, 0)..=(process, u64::MAX));
        let keys: Vec<Key> = keys.map(|(&key, _)| key).collect();
        let all = keys.into_iter();
        all.flat_map(|key| self.take(key, |_, _| true)).collect()
    }

    /// The time of the first who is to be woken by it.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let waiters = self.queues.values().flatten();
        waiters.filter_map(|waiter| waiter.deadline_ns).min()
    }

    /// Takes out those that `chosen` says, who is told how many have been.
    fn take(&mut self, key: Key, chosen: impl Fn(&Waiter<T>, usize) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        let Some(queue) = self.queues.get_mut(&key) else {
            return taken;
        };
        let mut at = 0;
        while at < queue.len() {
            if !chosen(&queue[at], taken.len()) {
                at += 1;
                continue;
            }
            taken.extend(queue.remove(at).map(|waiter| waiter.who));
        }
        self.tidy(key);
        taken
    }

    fn tidy(&mut self, key: Key) {
        if self.queues.get(&key).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&key);
        }
    }
}

static WAITING: spin::Mutex<Futexes<Box<Thread>>> = spin::Mutex::new(Futexes::new());

/// Has a thread wait, unless `still` says no: nobody can wake it in between.
pub(crate) fn wait(
    key: Key,
    mut waiter: Waiter<Box<Thread>>,
    still: impl FnOnce(&mut Thread) -> bool,
) -> Option<Box<Thread>> {
    let mut waiting = WAITING.lock();
    if !still(&mut waiter.who) {
        return Some(waiter.who);
    }
    let has_deadline = waiter.deadline_ns.is_some();
    waiting.wait(key, waiter);
    drop(waiting);
    if has_deadline {
        cores::wake(cores::TIMEKEEPER);
    }
    None
}

/// Wakes threads, which find 0 as the result of their call; how many.
pub(crate) fn wake(key: Key, most: u32, groups: u32) -> u64 {
    let woken = WAITING.lock().wake(key, most, groups);
    go_on(woken, 0)
}

/// Wakes some and moves others, if `still` says so; how many were woken, and how many moved.
pub(crate) fn requeue(
    from: Key,
    to: Key,
    counts: (u32, u32),
    still: impl FnOnce() -> bool,
) -> Option<(u64, u64)> {
    let mut waiting = WAITING.lock();
    if !still() {
        return None;
    }
    let (woken, moved) = waiting.requeue(from, to, counts.0, counts.1);
    drop(waiting);
    Some((go_on(woken, 0), moved.into()))
}

/// Wakes those whose time has come; they find that it has.
pub(crate) fn expire(now_ns: u64) {
    let expired = WAITING.lock().expire(now_ns);
    go_on(expired, super::errno::Errno::ETIMEDOUT.as_result());
}

/// The time of the first who is to be woken by it.
pub(crate) fn next_deadline() -> Option<u64> {
    WAITING.lock().next_deadline()
}

/// Wakes all threads of a process, which is about to end.
pub(super) fn wake_process(process: u64) {
    let woken = WAITING.lock().wake_process(process);
    go_on(woken, super::errno::Errno::EINTR.as_result());
}

fn go_on(threads: Vec<Box<Thread>>, result: u64) -> u64 {
    let count = threads.len() as u64;
    for mut thread in threads {
        thread.context.registers.rax = result;
        cores::send(thread);
    }
    count
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    const A: Key = (1, 0x1000);
    const B: Key = (1, 0x2000);

    fn waiter(who: u32, groups: u32, deadline_ns: Option<u64>) -> Waiter<u32> {
        Waiter {
            who,
            groups,
            deadline_ns,
        }
    }

    fn three() -> Futexes<u32> {
        let mut futexes = Futexes::new();
        for (who, groups) in [(1, 1), (2, 2), (3, 3)] {
            futexes.wait(A, waiter(who, groups, None));
        }
        futexes
    }

    #[test]
    fn the_first_are_woken_first() {
        let mut futexes = three();
        assert_eq!(futexes.wake(B, 9, u32::MAX), vec![]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), [1, 2]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), [3]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), vec![]);
    }

    #[test]
    fn groups_are_told_apart() {
        let mut futexes = three();
        assert_eq!(futexes.wake(A, 1, 2), [2]);
        assert_eq!(futexes.wake(A, 9, 2), [3]);
        assert_eq!(futexes.wake(A, 9, 1), [1]);
    }

    #[test]
    fn some_are_moved() {
        let mut futexes = three();
        assert_eq!(futexes.requeue(A, B, 1, 1), (vec![1], 1));
        assert_eq!(futexes.wake(B, 9, u32::MAX), [2]);
        assert_eq!(futexes.wake(A, 9, u32::MAX), [3]);
    }

    #[test]
    fn time_wakes_whom_it_is_due() {
        let mut futexes = Futexes::new();
        futexes.wait(A, waiter(1, 1, Some(50)));
        futexes.wait(B, waiter(2, 1, Some(40)));
        futexes.wait(B, waiter(3, 1, None));
        assert_eq!(futexes.next_deadline(), Some(40));
        assert_eq!(futexes.expire(39), vec![]);
        assert_eq!(futexes.expire(40), [2]);
        assert_eq!(futexes.next_deadline(), Some(50));
        assert_eq!(futexes.wake_process(1), [1, 3]);
        assert_eq!(futexes.next_deadline(), None);
    }
}
