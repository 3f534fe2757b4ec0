//! Tasks that wait without end, for an event or for a processor.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::lock::Lock;
use crate::target::{Place, Since};
use crate::task::{Task, is_runnable, is_uninterruptible, listed, switches};
use kimage::running::RunningError;
use std::collections::HashMap;
use std::time::Duration;

/// Watches the tasks that are in a state of waiting, and whether they have run meanwhile.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// By address and id: what the task waits for, and how often it has run.
    tasks: HashMap<(u64, u32), Since<(Kind, u64)>>,
}

impl Check for Waiting {
    fn name(&self) -> &'static str {
        "waiting tasks"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let mut tasks = HashMap::new();
        let mut found = Vec::new();
        for place in listed(round.target.kernel)? {
            let Some((kind, run)) = wait(&place)? else {
                continue;
            };
            let task = Task::of(place)?;
            let key = (task.address, task.id);
            let mut since = match self.tasks.remove(&key) {
                Some(since) => since,
                None => Since::new((kind, run), round.now),
            };
            let lasts = since.update((kind, run), round.now);
            tasks.insert(key, since);
            if let Some(finding) = finding(round, kind, &task, lasts) {
                found.push(finding.with_more(&awaited(&place)?));
            }
        }
        self.tasks = tasks;
        Ok(found)
    }
}

/// What a task waits for, and what changes when it runs; `None` if it does not.
fn wait(task: &Place<'_, '_>) -> Result<Option<(Kind, u64)>, RunningError> {
    if is_uninterruptible(task)? {
        return Ok(Some((Kind::TaskHung, switches(task)?)));
    }
    // It runs, or is in the queue: if it runs, its time grows.
    if is_runnable(task)? && task.number("on_cpu")? == 0 {
        return Ok(Some((Kind::TaskStarved, switches(task)?)));
    }
    Ok(None)
}

/// In words, the lock that a task waits for, and who has it.
fn awaited(task: &Place<'_, '_>) -> Result<String, RunningError> {
    let kernel = task.kernel();
    let Some(lock) = Lock::awaited(task)? else {
        return Ok(String::new());
    };
    let owner = Task::of(kernel.object(lock.owner, "task_struct")?)?;
    let (lock, owner) = (lock.describe(kernel), owner.subject());
    Ok(format!(", for {lock} of {owner}"))
}

fn finding(round: &Round<'_>, kind: Kind, task: &Task, lasts: Duration) -> Option<Finding> {
    let rules = round.rules;
    let (limit, allowed, state) = match kind {
        Kind::TaskHung => (
            rules.limits.task_hung_s,
            &rules.allow.task_hung,
            "cannot be interrupted, and waits",
        ),
        _ => (
            rules.limits.task_starved_s,
            &rules.allow.task_starved,
            "could run, and gets no turn",
        ),
    };
    let is_wrong = lasts >= limit && !allowed.contains(&task.name);
    is_wrong.then(|| {
        Finding::new(
            kind,
            task.subject(),
            format!("it {state} for {} s", lasts.as_secs()),
        )
    })
}
