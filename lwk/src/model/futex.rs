//! Wait queues of futexes: who waits for what, and in which order they are woken.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// Key of a wait queue: a memory's id and an address; or a shared-memory object (`SHARED`) and an
/// offset.
pub type Key = (u64, u64);

/// Bit set in the first word of the key of a shared-memory object.
pub(crate) const SHARED: u64 = 1 << 63;

/// Mask of the owner's thread id in a PI futex; 0 if it is free.
pub const TID_MASK: u32 = 0x3fff_ffff;
/// The owner exited without releasing the futex.
pub const OWNER_DIED: u32 = 0x4000_0000;
/// Threads wait in the kernel.
pub const WAITERS: u32 = 0x8000_0000;

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
    pub(crate) rank: u32,
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
