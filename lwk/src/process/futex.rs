//! Futexes: threads that wait until another says that a word of their memory has changed.
//!
//! [`Futexes`] is the pure part, tested on the host: who waits for what, in which order they are woken.

#![allow(
    clippy::vec_box,
    reason = "a thread is moved from list to list, by its address"
)]

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use super::signals::Notice;
use super::{Thread, list};
use crate::cores;

/// What is waited for: a program's memory and an address, or a shared memory ([`SHARED`]) and a place in it.
pub type Key = (u64, u64);

/// Set in the first word of the key of shared memory.
pub(super) const SHARED: u64 = 1 << 63;

impl super::Process {
    /// What a thread waits for that waits until it is the only one of its program: no place of one.
    pub(crate) fn alone_key(&self) -> Key {
        (self.pages().number(), 1 << 63)
    }
}

/// One that waits.
#[derive(Debug)]
pub struct Waiter<T> {
    /// Who.
    pub who: T,
    /// By which of a futex's 32 groups it can be woken.
    pub groups: u32,
    /// When it is woken in any case, in ns of the kernel's clock.
    pub deadline_ns: Option<u64>,
    /// How urgent it is: the more urgent are woken first, of equals who came first.
    rank: u32,
}

impl<T> Waiter<T> {
    /// One that is not urgent.
    pub fn new(who: T, groups: u32, deadline_ns: Option<u64>) -> Self {
        Self {
            who,
            groups,
            deadline_ns,
            rank: 0,
        }
    }
}

/// All who wait.
#[derive(Debug)]
pub struct Futexes<T> {
    queues: BTreeMap<Key, VecDeque<Waiter<T>>>,
    /// The threads that have the locks of those queues that are for locks.
    holders: BTreeMap<Key, u64>,
    /// Those of them for whom others may wait than before.
    changed: BTreeSet<u64>,
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
            holders: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Has one wait, behind all others that are no less urgent.
    pub fn wait(&mut self, key: Key, waiter: Waiter<T>) {
        let queue = self.queues.entry(key).or_default();
        let place = queue.partition_point(|other| other.rank >= waiter.rank);
        queue.insert(place, waiter);
        self.changes(key);
    }

    /// Says who has the lock that is waited for, if anybody waits.
    pub fn set_holder(&mut self, key: Key, holder: u64) {
        if !self.queues.contains_key(&key) {
            return;
        }
        let before = self.holders.insert(key, holder);
        self.changed.extend(before);
        self.changed.insert(holder);
    }

    /// How urgent the most urgent is who waits for what a thread has; 0 if nobody does.
    #[must_use]
    pub fn rank_behind(&self, holder: u64) -> u32 {
        let held = self.holders.iter().filter(|(_, one)| **one == holder);
        let first = held.filter_map(|(key, _)| self.queues.get(key)?.front());
        first.map(|waiter| waiter.rank).max().unwrap_or(0)
    }

    /// The one that `chosen` says is so urgent from now on.
    pub fn set_rank(&mut self, rank: u32, chosen: impl Fn(&T) -> bool) {
        let place = |queue: &VecDeque<Waiter<T>>| queue.iter().position(|one| chosen(&one.who));
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

    /// Takes the threads for whom others may wait than before.
    pub fn take_changed(&mut self) -> BTreeSet<u64> {
        core::mem::take(&mut self.changed)
    }

    fn changes(&mut self, key: Key) {
        self.changed.extend(self.holders.get(&key));
    }

    /// Takes out the first `most` that are in one of `groups`.
    pub fn wake(&mut self, key: Key, most: u32, groups: u32) -> Vec<T> {
        self.take(key, |waiter, woken| {
            woken < most as usize && waiter.groups & groups != 0
        })
    }

    /// The first who waits, and whether there are more.
    #[must_use]
    pub fn first(&self, key: Key) -> (Option<&T>, bool) {
        let queue = self.queues.get(&key);
        let first = queue.and_then(|queue| Some(&queue.front()?.who));
        (first, queue.is_some_and(|queue| queue.len() > 1))
    }

    /// Takes out the first `wake`, and has `most` of the others wait for something else. Answers
    /// who was taken out, and how many were moved.
    pub fn requeue(&mut self, from: Key, to: Key, wake: u32, most: u32) -> (Vec<T>, u32) {
        let woken = self.wake(from, wake, u32::MAX);
        let mut moved = Vec::new();
        if let Some(queue) = self.queues.get_mut(&from) {
            moved.extend(queue.drain(..queue.len().min(most as usize)));
        }
        self.tidy(from);
        let count = moved.len() as u32;
        for waiter in moved {
            self.wait(to, waiter);
        }
        (woken, count)
    }

    /// Takes out all of `mine` whose time has come.
    pub fn expire(&mut self, now_ns: u64, mine: impl Fn(&T) -> bool) -> Vec<T> {
        let is_due = |waiter: &Waiter<T>| {
            mine(&waiter.who) && waiter.deadline_ns.is_some_and(|at| at <= now_ns)
        };
        let keys: Vec<Key> = self.queues.keys().copied().collect();
        let all = keys.into_iter();
        all.flat_map(|key| self.take(key, |waiter, _| is_due(waiter)))
            .collect()
    }

    /// Takes out those that `chosen` says, whatever they wait for.
    pub fn wake_chosen(&mut self, chosen: impl Fn(&T) -> bool) -> Vec<T> {
        let keys: Vec<Key> = self.queues.keys().copied().collect();
        let all = keys.into_iter();
        let chosen = |waiter: &Waiter<T>| chosen(&waiter.who);
        all.flat_map(|key| self.take(key, |waiter, _| chosen(waiter)))
            .collect()
    }

    /// The time of the first of `mine` who is to be woken by it.
    #[must_use]
    pub fn next_deadline(&self, mine: impl Fn(&T) -> bool) -> Option<u64> {
        let waiters = self.queues.values().flatten();
        let mine = waiters.filter(|waiter| mine(&waiter.who));
        mine.filter_map(|waiter| waiter.deadline_ns).min()
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
        self.changes(key);
        if self.queues.get(&key).is_some_and(VecDeque::is_empty) {
            self.queues.remove(&key);
            self.holders.remove(&key);
        }
    }
}

/// For each core, the time of its first waiter who is to be woken by it: changed only by who has all
/// waiters.
static DEADLINES: [AtomicU64; insula_abi::NODE_CPUS_MAX] =
    [const { AtomicU64::new(NEVER) }; insula_abi::NODE_CPUS_MAX];
const NEVER: u64 = u64::MAX;

fn deadline_of(core: u32) -> &'static AtomicU64 {
    &DEADLINES[core as usize % insula_abi::NODE_CPUS_MAX]
}

static WAITING: spin::Mutex<Futexes<Box<Thread>>> = spin::Mutex::new(Futexes::new());

/// All who wait. Whoever has them may wait for a program's memory, and so for this core to take an
/// interrupt.
fn waiting() -> spin::MutexGuard<'static, Futexes<Box<Thread>>> {
    cores::wait_for(|| WAITING.try_lock())
}

/// Takes out the first who waits, if `give` says so, who is told its thread's id and whether there
/// are more. It goes on with 0 as the result of its call.
pub(crate) fn hand_over(key: Key, give: impl FnOnce(Option<u64>, bool) -> bool) {
    let mut waiting = waiting();
    let (next, more) = waiting.first(key);
    let next = next.map(|thread| thread.id);
    if !give(next, more) {
        return;
    }
    let taken = waiting.wake(key, 1, u32::MAX);
    if let Some(next) = next {
        waiting.set_holder(key, next);
    }
    lend(&mut waiting);
    drop(waiting);
    go_on(taken, 0);
}

/// Says who has a lock for which others wait.
pub(crate) fn set_holder(key: Key, holder: u64) {
    let mut waiting = waiting();
    waiting.set_holder(key, holder);
    lend(&mut waiting);
}

/// Has those who hold locks be as urgent as the most urgent who waits for one, and so on, if these wait
/// for others themselves.
fn lend(waiting: &mut Futexes<Box<Thread>>) {
    /// As far as Linux follows chains of locks (`kernel.max_lock_depth`): there may be circles.
    const CHAIN_MAX: usize = 1024;
    for _ in 0..CHAIN_MAX {
        let changed = waiting.take_changed();
        if changed.is_empty() {
            return;
        }
        for holder in changed {
            let rank = waiting.rank_behind(holder);
            if let Some(notice) = list::notice(holder)
                && notice.lend(rank)
            {
                look_anew(waiting, &notice);
            }
        }
    }
}

/// A thread is more or less urgent than before, wherever it is.
fn look_anew(waiting: &mut Futexes<Box<Thread>>, notice: &Arc<Notice>) {
    let rank = notice.priority().realtime();
    waiting.set_rank(rank, |thread| Arc::ptr_eq(&thread.notice, notice));
    cores::interrupt(notice.core.load(Ordering::Relaxed));
}

/// A thread has been given another priority.
pub(crate) fn change_urgency(notice: &Arc<Notice>) {
    let mut waiting = waiting();
    look_anew(&mut waiting, notice);
    lend(&mut waiting);
}

/// Has a thread wait, unless `still` says no: nobody can wake it in between.
pub(crate) fn wait(
    key: Key,
    waiter: Waiter<Box<Thread>>,
    still: impl FnOnce(&mut Thread) -> bool,
) -> Option<Box<Thread>> {
    wait_for_holder(key, waiter, |thread| still(thread).then_some(None))
}

/// The same; `still` also says who has what is waited for, if it is a lock.
pub(crate) fn wait_for_holder(
    key: Key,
    mut waiter: Waiter<Box<Thread>>,
    still: impl FnOnce(&mut Thread) -> Option<Option<u64>>,
) -> Option<Box<Thread>> {
    let mut waiting = waiting();
    let Some(holder) = still(&mut waiter.who) else {
        return Some(waiter.who);
    };
    waiter.rank = waiter.who.notice.priority().realtime();
    let (core, deadline_ns) = (waiter.who.core, waiter.deadline_ns);
    waiting.wait(key, waiter);
    if let Some(holder) = holder {
        waiting.set_holder(key, holder);
        lend(&mut waiting);
    }
    if let Some(deadline_ns) = deadline_ns {
        deadline_of(core).fetch_min(deadline_ns, Ordering::AcqRel);
    }
    None
}

/// Wakes threads, which find 0 as the result of their call; how many.
pub(crate) fn wake(key: Key, most: u32, groups: u32) -> u64 {
    let woken = {
        let mut waiting = waiting();
        let woken = waiting.wake(key, most, groups);
        lend(&mut waiting);
        woken
    };
    go_on(woken, 0)
}

/// Wakes some and moves others, if `still` says so; how many were woken, and how many moved.
pub(crate) fn requeue(
    from: Key,
    to: Key,
    counts: (u32, u32),
    still: impl FnOnce() -> bool,
) -> Option<(u64, u64)> {
    let mut waiting = waiting();
    if !still() {
        return None;
    }
    let (woken, moved) = waiting.requeue(from, to, counts.0, counts.1);
    lend(&mut waiting);
    drop(waiting);
    Some((go_on(woken, 0), moved.into()))
}

/// Wakes those of a core whose time has come; they find that it has.
pub(crate) fn expire(core: u32, now_ns: u64) {
    let is_of = |thread: &Thread| thread.core == core;
    let mut waiting = waiting();
    let expired = waiting.expire(now_ns, |thread| is_of(thread));
    let next_ns = waiting.next_deadline(|thread| is_of(thread));
    deadline_of(core).store(next_ns.unwrap_or(NEVER), Ordering::Release);
    lend(&mut waiting);
    drop(waiting);
    go_on(expired, super::errno::Errno::ETIMEDOUT.as_result());
}

/// The time at which a core has to look whom of its own to wake: the thread may have been woken since.
pub(crate) fn next_deadline(core: u32) -> Option<u64> {
    match deadline_of(core).load(Ordering::Acquire) {
        NEVER => None,
        deadline_ns => Some(deadline_ns),
    }
}

/// Breaks off the waiting of those threads of a process that `chosen` says.
pub(super) fn break_off(process: u64, chosen: impl Fn(&Thread) -> bool) {
    let is_of = |thread: &Thread| thread.process.pages().number() == process;
    let woken = {
        let mut waiting = waiting();
        let woken = waiting.wake_chosen(|thread| is_of(thread) && chosen(thread));
        lend(&mut waiting);
        woken
    };
    go_on(woken, super::errno::Errno::EINTR.as_result());
}

fn go_on(threads: Vec<Box<Thread>>, result: u64) -> u64 {
    let count = threads.len() as u64;
    for mut thread in threads {
        let copy = thread.copy_let_go.take();
        thread.context.registers.rax = copy.unwrap_or(result);
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
        Waiter::new(who, groups, deadline_ns)
    }

    fn ranked(who: u32, rank: u32) -> Waiter<u32> {
        Waiter {
            rank,
            ..waiter(who, 1, None)
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
        assert_eq!(
            (futexes.first(A), futexes.first(B)),
            ((Some(&1), true), (None, false))
        );
        assert_eq!(futexes.wake(A, 2, u32::MAX), [1, 2]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), [3]);
        assert_eq!(futexes.wake(A, 2, u32::MAX), vec![]);
    }

    #[test]
    fn the_urgent_are_woken_first() {
        let mut futexes = Futexes::new();
        for (who, rank) in [(1, 0), (2, 5), (3, 0), (4, 5), (5, 9)] {
            futexes.wait(A, ranked(who, rank));
        }
        futexes.set_rank(7, |&who| who == 3);
        assert_eq!(futexes.wake(A, 9, u32::MAX), [5, 3, 2, 4, 1]);
    }

    #[test]
    fn holders_are_as_urgent_as_who_waits() {
        let mut futexes = Futexes::new();
        futexes.set_holder(A, 7);
        assert!(futexes.take_changed().is_empty(), "nobody waits");
        futexes.wait(A, ranked(1, 3));
        futexes.set_holder(A, 7);
        futexes.wait(B, ranked(2, 5));
        futexes.set_holder(B, 7);
        assert_eq!(futexes.take_changed(), [7].into());
        assert_eq!((futexes.rank_behind(7), futexes.rank_behind(8)), (5, 0));
        futexes.wait(A, ranked(3, 6));
        assert_eq!(futexes.take_changed(), [7].into());
        assert_eq!(futexes.rank_behind(7), 6);
        // The first gets it: from now on the other waits for that one.
        assert_eq!(futexes.wake(A, 1, u32::MAX), [3]);
        futexes.set_holder(A, 8);
        assert_eq!(futexes.take_changed(), [7, 8].into());
        assert_eq!((futexes.rank_behind(7), futexes.rank_behind(8)), (5, 3));
        // Of whom nobody has been taken it is no harm to look anew.
        assert_eq!(futexes.wake_chosen(|&who| who == 1), [1]);
        assert_eq!(futexes.take_changed(), [7, 8].into());
        assert_eq!((futexes.rank_behind(7), futexes.rank_behind(8)), (5, 0));
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
        let (all, odd) = (|_: &u32| true, |who: &u32| !who.is_multiple_of(2));
        assert_eq!(futexes.next_deadline(all), Some(40));
        assert_eq!(futexes.next_deadline(odd), Some(50));
        assert_eq!(futexes.expire(39, all), vec![]);
        assert_eq!(futexes.expire(40, odd), vec![]);
        assert_eq!(futexes.expire(40, all), [2]);
        assert_eq!(futexes.next_deadline(all), Some(50));
        assert_eq!(futexes.wake_chosen(|&who| who == 3), [3]);
        assert_eq!(futexes.wake_chosen(|_| true), [1]);
        assert_eq!(futexes.next_deadline(all), None);
    }
}
