//! Locks whose owner is gone, and tasks that wait for each other's.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::lock::Lock;
use crate::target::{Kernel, Place};
use crate::task::{Task, listed, numbered, queued};
use kimage::running::RunningError;
use std::collections::{BTreeMap, BTreeSet};

/// Looks for locks from the tasks that wait for them.
#[derive(Debug)]
pub(super) struct Locks;

impl Check for Locks {
    fn name(&self) -> &'static str {
        "locks"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        if !has_owners(kernel)? {
            return Ok(Vec::new());
        }
        let tasks = listed(kernel)?;
        let mut waits = BTreeMap::new();
        for task in &tasks {
            if let Some(lock) = Lock::awaited(task)? {
                waits.insert(task.address(), (Task::of(*task)?, lock));
            }
        }
        if waits.is_empty() {
            return Ok(Vec::new());
        }
        let alive = alive(kernel, tasks)?;
        let mut found = deadlocks(kernel, &waits);
        found.extend(orphans(kernel, &waits, &alive));
        Ok(found)
    }
}

/// Whether the kernel's locks are of these kinds: those of PREEMPT_RT are not.
fn has_owners(kernel: &Kernel<'_>) -> Result<bool, RunningError> {
    Ok(kernel.btf()?.size_of("mutex_waiter").is_ok())
}

/// Tasks that can unlock something: in any list of the kernel, and not at their end.
fn alive(kernel: &Kernel<'_>, tasks: Vec<Place<'_, '_>>) -> Result<BTreeSet<u64>, RunningError> {
    let mut alive = BTreeSet::new();
    let others = numbered(kernel)?.into_values().chain(queued(kernel)?);
    for task in tasks.into_iter().chain(others) {
        if task.number("exit_state")? == 0 {
            alive.insert(task.address());
        }
    }
    Ok(alive)
}

/// By address: each task that waits, and for what.
type Waits = BTreeMap<u64, (Task, Lock)>;

/// Locks of tasks that have ended.
fn orphans(kernel: &Kernel<'_>, waits: &Waits, alive: &BTreeSet<u64>) -> Vec<Finding> {
    let mut locks: BTreeMap<u64, (&Lock, Vec<String>)> = BTreeMap::new();
    for (task, lock) in waits.values() {
        if !alive.contains(&lock.owner) {
            let (_, waiting) = locks.entry(lock.address).or_insert((lock, Vec::new()));
            waiting.push(task.subject());
        }
    }
    let finding = |(lock, waiting): (&Lock, Vec<String>)| {
        let detail = format!(
            "the task that has locked it has ended; waiting: {}",
            waiting.join(", ")
        );
        let finding = Finding::new(Kind::LockOrphaned, lock.describe(kernel), detail);
        finding.with_repair(Some(lock.release()))
    };
    locks.into_values().map(finding).collect()
}

/// Rings of tasks each of which waits for a lock that the next one has.
fn deadlocks(kernel: &Kernel<'_>, waits: &Waits) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for start in waits.keys() {
        let mut chain: Vec<(u64, &Task, &Lock)> = Vec::new();
        let mut address = *start;
        while let Some((task, lock)) = waits.get(&address) {
            if !seen.insert(address) {
                let begin = chain.iter().position(|(other, ..)| *other == address);
                found.extend(begin.map(|begin| deadlock(kernel, &chain[begin..])));
                break;
            }
            chain.push((address, task, lock));
            address = lock.owner;
        }
    }
    found
}

fn deadlock(kernel: &Kernel<'_>, ring: &[(u64, &Task, &Lock)]) -> Finding {
    let tasks: Vec<_> = ring.iter().map(|(_, task, _)| task.subject()).collect();
    let locks = ring.iter().map(|(_, _, lock)| lock.describe(kernel));
    let next = tasks.iter().cycle().skip(1);
    let waits = tasks.iter().zip(locks).zip(next);
    let waits = waits.map(|((task, lock), next)| format!("{task} waits for {lock} of {next}"));
    let detail = waits.collect::<Vec<_>>().join(", ");
    Finding::new(Kind::Deadlock, tasks.join(", "), detail)
}
