//! Tasks that are in one list of the kernel and missing in another.

use super::{Check, Round};
use crate::finding::{Finding, Kind};
use crate::repair::Repair;
use crate::target::{Kernel, Place};
use crate::task::{Task, listed, numbered, queued};
use kimage::running::RunningError;
use std::collections::HashSet;

/// Size of a lock that is free if it is zero, in bytes.
const WORD: u64 = size_of::<u64>() as u64;

/// Compares the list of processes and threads, from which the kernel makes what `ps` shows of
/// threads, the table of process ids, by which it finds them, and the queues from which it executes.
#[derive(Debug)]
pub(super) struct HiddenTasks;

impl Check for HiddenTasks {
    fn name(&self) -> &'static str {
        "hidden tasks"
    }

    fn look(&mut self, round: &Round<'_>) -> Result<Vec<Finding>, RunningError> {
        let kernel = round.target.kernel;
        let queued = queued(kernel)?;
        let numbered = numbered(kernel)?;
        let listed = listed(kernel)?;
        let in_list: HashSet<u64> = listed.iter().map(|task| task.address()).collect();
        let mut found = Vec::new();
        for task in numbered.values() {
            if !in_list.contains(&task.address()) {
                let finding = hidden(Task::of(*task)?, "the table of ids", "the task list");
                found.push(finding.with_repair(relink(kernel, task)?));
            }
        }
        for task in &listed {
            if !numbered.contains_key(&task.address()) {
                found.push(hidden(
                    Task::of(*task)?,
                    "the task list",
                    "the table of ids",
                ));
            }
        }
        for task in queued {
            let known = in_list.contains(&task.address()) || numbered.contains_key(&task.address());
            let task = Task::of(task)?;
            // The idle tasks have no id.
            if !known && task.id != 0 {
                found.push(hidden(task, "a run queue", "the task list"));
            }
        }
        Ok(found)
    }
}

/// Appends a process to the task list. That is certain if the kernel is not just changing the list:
/// its lock is free.
fn relink(kernel: &Kernel<'_>, task: &Place<'_, '_>) -> Result<Option<Repair>, RunningError> {
    let btf = kernel.btf()?;
    let is_process = task.number("pid")? == task.number("tgid")?;
    // With locks of another kind, of PREEMPT_RT for one, it is not known when they are free.
    let has_lock = btf.size_of("rwlock_t")? == WORD;
    if !is_process || !has_lock || task.number("exit_state")? != 0 {
        return Ok(None);
    }
    let offset = btf.offset_of("task_struct", "tasks")?;
    let previous = btf.offset_of("list_head", "prev")?;
    let head = kernel.symbol("init_task")?.wrapping_add(offset);
    let entry = task.address().wrapping_add(offset);
    let last = kernel.word(head.wrapping_add(previous))?;
    if kernel.word(last)? != head {
        return Ok(None);
    }
    let back = |link: u64| link.wrapping_add(previous);
    Ok(Some(Repair::of_words(&[
        (kernel.symbol("tasklist_lock")?, 0, 0),
        (entry, kernel.word(entry)?, head),
        (back(entry), kernel.word(back(entry))?, last),
        (last, head, entry),
        (back(head), last, entry),
    ])))
}

fn hidden(task: Task, present: &str, missing: &str) -> Finding {
    Finding::new(
        Kind::TaskHidden,
        task.subject(),
        format!("it is in {present}, but not in {missing}"),
    )
}
