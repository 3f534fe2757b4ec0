//! Tasks of a kernel: threads, of processes and its own.

use crate::target::{Kernel, Place};
use kimage::running::{LIST_MAX, ListError, RunningError};
use std::collections::{BTreeMap, HashSet};

/// `TASK_UNINTERRUPTIBLE`, `TASK_WAKEKILL`, `TASK_NOLOAD`, `TASK_DEAD` and `TASK_FROZEN` of
/// include/linux/sched.h.
const UNINTERRUPTIBLE: u64 = 0x2;
const WAKEKILL: u64 = 0x100;
const NOLOAD: u64 = 0x400;
const FROZEN: u64 = 0x8000;
/// Limits on what is read of the table of process ids: depth of a tree with 64 slots for 64 bits,
/// its nodes for as many ids as a list may have, and slots of a node.
const TREE_DEPTH_MAX: u64 = 11;
const TREE_NODES_MAX: usize = 1 << 17;
const TREE_SLOTS: u64 = 64;
/// Lower bits of an entry of an XArray, and of one that is a node (include/linux/xarray.h).
const ENTRY_MASK: u64 = 3;
const ENTRY_NODE: u64 = 2;

/// A task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    /// Address of its `task_struct`.
    pub(crate) address: u64,
    /// Its id: the kernel's `pid`.
    pub(crate) id: u32,
    /// Its name.
    pub(crate) name: String,
}

impl Task {
    /// Reads what identifies a task.
    pub(crate) fn of(place: Place<'_, '_>) -> Result<Self, RunningError> {
        Ok(Self {
            address: place.address(),
            id: place.number("pid")? as u32,
            name: place.member("comm")?.text()?,
        })
    }

    /// As a subject of findings.
    pub(crate) fn subject(&self) -> String {
        format!("pid {} ({})", self.id, self.name)
    }
}

/// All tasks by the kernel's list of processes and their lists of threads, without the idle ones.
pub(crate) fn listed<'k, 'a>(kernel: &'k Kernel<'a>) -> Result<Vec<Place<'k, 'a>>, RunningError> {
    let first = kernel.global("init_task", "task_struct")?;
    let mut tasks = Vec::new();
    // No two processes have the same threads, and all together not more than the kernel can have.
    let mut seen = HashSet::new();
    for process in first.member("tasks")?.list("task_struct", "tasks")? {
        match process.follow("signal")? {
            Some(signal) if seen.insert(signal.address()) => {
                let threads = signal.member("thread_head")?;
                tasks.extend(threads.list("task_struct", "thread_node")?);
            }
            Some(_) => return Err(ListError::Endless(process.address()).into()),
            // It has just ended.
            None => tasks.push(process),
        }
        if tasks.len() > LIST_MAX {
            return Err(ListError::Endless(first.address()).into());
        }
    }
    Ok(tasks)
}

/// All tasks by the table of process ids, with these.
pub(crate) fn numbered<'k, 'a>(
    kernel: &'k Kernel<'a>,
) -> Result<BTreeMap<u64, Place<'k, 'a>>, RunningError> {
    let root = kernel.global("init_pid_ns", "pid_namespace")?;
    let mut open = vec![(root.number("idr.idr_rt.xa_head")?, TREE_DEPTH_MAX)];
    let mut tasks = BTreeMap::new();
    let mut nodes = 0;
    while let Some((entry, depth)) = open.pop() {
        if entry & ENTRY_MASK == ENTRY_NODE {
            nodes += 1;
            if depth == 0 || nodes > TREE_NODES_MAX {
                break;
            }
            let node = kernel.object(entry - ENTRY_NODE, "xa_node")?;
            let slots = node.member("slots")?;
            for index in 0..TREE_SLOTS {
                let slot = slots.element(index)?.value()?;
                if slot != 0 {
                    open.push((slot, depth - 1));
                }
            }
        } else if entry & ENTRY_MASK == 0 && entry != 0 {
            let task = task_of_id(kernel, entry)?;
            tasks.extend(task.map(|task| (task.address(), task)));
        }
    }
    Ok(tasks)
}

/// The task that uses a process id (`struct pid`) as its own.
fn task_of_id<'k, 'a>(
    kernel: &'k Kernel<'a>,
    id: u64,
) -> Result<Option<Place<'k, 'a>>, RunningError> {
    // The first kind of use, `PIDTYPE_PID`, and so the first link of the task.
    let uses = kernel.object(id, "pid")?.member("tasks")?;
    let link = uses.element(0)?.follow("first")?;
    link.map(|link| link.container("task_struct", "pid_links"))
        .transpose()
}

/// Tasks that the processors have in their queues, or execute.
pub(crate) fn queued<'k, 'a>(kernel: &'k Kernel<'a>) -> Result<Vec<Place<'k, 'a>>, RunningError> {
    let mut tasks = Vec::new();
    let mut seen = HashSet::new();
    for processor in kernel.processors()?.iter().filter(|one| one.online) {
        let queue = kernel.per_cpu(processor, "runqueues", "rq")?;
        let fair = queue.member("cfs_tasks")?;
        let waiting = fair.list("task_struct", "se.group_node")?;
        tasks.extend(waiting.into_iter().chain(queue.follow("curr")?));
    }
    tasks.retain(|task| seen.insert(task.address()));
    Ok(tasks)
}

/// Number of times that a task has lost its processor, voluntarily or not.
pub(crate) fn switches(task: &Place<'_, '_>) -> Result<u64, RunningError> {
    Ok(task.number("nvcsw")?.wrapping_add(task.number("nivcsw")?))
}

/// Whether it waits so that nothing but what it waits for ends that, as khungtaskd decides
/// (kernel/hung_task.c).
pub(crate) fn is_uninterruptible(task: &Place<'_, '_>) -> Result<bool, RunningError> {
    let state = task.number("__state")?;
    Ok(state & UNINTERRUPTIBLE != 0 && state & (WAKEKILL | NOLOAD | FROZEN) == 0)
}

/// Whether it waits so that at most its end ends that.
pub(crate) fn is_uninterruptible_or_killable(task: &Place<'_, '_>) -> Result<bool, RunningError> {
    Ok(task.number("__state")? & UNINTERRUPTIBLE != 0)
}

/// Whether it is in a queue of those that can run.
pub(crate) fn is_runnable(task: &Place<'_, '_>) -> Result<bool, RunningError> {
    Ok(task.number("__state")? == 0 && task.number("on_rq")? == 1)
}
