//! Table of all processes. A process stays in it until all of it is freed and the base is told,
//! which may then reuse its pages.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use insula_abi::lwk::{base_state, process_state};

use crate::base::process_pages::ProcessPages;
use crate::model::thread_handle::ThreadHandle;
use crate::task::process::Process;

/// All processes, by number.
static PROCESSES: spin::Mutex<Vec<Arc<Process>>> = spin::Mutex::new(Vec::new());
/// Power the node off after its last process.
static POWER_OFF_AFTER_LAST: AtomicBool = AtomicBool::new(false);
/// Some process has exited and is not reaped yet.
static REAP_PENDING: AtomicBool = AtomicBool::new(false);

/// Makes the node power off when its last process is reaped.
pub(crate) fn power_off_after_last() {
    POWER_OFF_AFTER_LAST.store(true, Ordering::Relaxed);
}

/// Adds a process.
pub(super) fn add(process: Arc<Process>) {
    let mut processes = PROCESSES.lock();
    let (Ok(place) | Err(place)) = search(&processes, process.pages().number());
    processes.insert(place, process);
}

/// Returns the place of the process with that number, or where it would be.
fn search(processes: &[Arc<Process>], number: u64) -> Result<usize, usize> {
    processes.binary_search_by_key(&number, |process| process.pages().number())
}

/// Action for a process that the base has announced.
pub(super) enum Action {
    /// None.
    Nothing,
    /// Load its program.
    Start,
    /// Start its nascent child's thread, if any, and take its signals.
    Service(Arc<Process>),
    /// Have its threads exit.
    Exit(Arc<Process>),
    /// Make the proxy of a child that will not run exit.
    KillProxy,
}

/// Chooses the action for a process by the base's state.
pub(super) fn action(pages: &ProcessPages) -> Action {
    let processes = PROCESSES.lock();
    let find = |number| Some(&processes[search(&processes, number).ok()?]);
    let known = find(pages.number()).cloned();
    let is_parent_forking = || find(pages.parent()).is_some_and(|parent| parent.is_forking());
    match (pages.base_state(), known) {
        (base_state::STARTED, Some(process)) => Action::Service(process),
        (base_state::EXITED.., Some(process)) => Action::Exit(process),
        // Its parent will service it after fork(2).
        (_, None) if is_parent_forking() => Action::Nothing,
        (base_state::STARTED, None) if pages.parent() == 0 => Action::Start,
        (base_state::STARTED, None) => Action::KillProxy,
        (base_state::QUIESCED, None) => {
            pages.set_state(process_state::REAPED);
            Action::Nothing
        }
        _ => Action::Nothing,
    }
}

/// Returns the process of a number.
pub(crate) fn find(number: u64) -> Option<Arc<Process>> {
    let processes = PROCESSES.lock();
    let at = search(&processes, number).ok()?;
    Some(Arc::clone(&processes[at]))
}

/// Returns the id by which programs know the process of a number.
pub(crate) fn pid(number: u64) -> Option<u64> {
    find(number).map(|process| process.pages().pid())
}

/// Finds a thread of any process.
pub(crate) fn handle(thread: u64) -> Option<Arc<ThreadHandle>> {
    let processes = PROCESSES.lock();
    let mut all = processes.iter();
    all.find_map(|process| process.signals().handle(thread))
}

/// Requests reaping. Set with the table locked, or a concurrent [`take_reapable`] could clear it.
pub(super) fn mark_reap_pending() {
    let _processes = PROCESSES.lock();
    REAP_PENDING.store(true, Ordering::Release);
}

/// Whether a process is exiting, so that memory will be freed.
pub(crate) fn is_any_exiting() -> bool {
    let has_exited = |process: &Arc<Process>| {
        process.is_exiting() || process.pages().base_state() >= base_state::EXITED
    };
    PROCESSES.lock().iter().any(has_exited)
}

/// Takes the processes that can be reaped; each is returned once.
pub(super) fn take_reapable() -> Vec<Arc<Process>> {
    let processes = PROCESSES.lock();
    let is_reapable = |process: &Process| {
        let is_gone = process.pages().base_state() == base_state::QUIESCED;
        is_gone && process.threads.load(Ordering::Acquire) == 0
    };
    let (mut reapable, mut has_more) = (Vec::new(), false);
    for process in processes.iter().filter(|process| process.is_exiting()) {
        match is_reapable(process) {
            true if !process.is_being_reaped.swap(true, Ordering::AcqRel) => {
                reapable.push(Arc::clone(process))
            }
            true => {}
            false => has_more = true,
        }
    }
    REAP_PENDING.store(has_more, Ordering::Release);
    reapable
}

/// Whether a process may have to be reaped.
pub(super) fn is_reap_pending() -> bool {
    REAP_PENDING.load(Ordering::Acquire)
}

/// Removes a reaped process. Returns whether the node shall power off now.
pub(super) fn remove(process: &Arc<Process>) -> bool {
    let mut processes = PROCESSES.lock();
    processes.retain(|one| !Arc::ptr_eq(one, process));
    // Both changes are made under the lock.
    process.pages().set_state(process_state::REAPED);
    processes.is_empty() && POWER_OFF_AFTER_LAST.load(Ordering::Relaxed)
}
