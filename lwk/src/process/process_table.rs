//! Table of all processes.
//!
//! Several cores may be notified of the same process, so the base's state is handled under a lock.
//! Processes are reaped without that lock. A process stays in the table until all of it is freed
//! and the base is told, which may then reuse its pages.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use insula_abi::lwk::{base_state, process_state};

use super::signals::ThreadHandle;
use super::{Process, fork, loader};
use crate::delegation::{DelegationArea, ProcessPages};
use crate::{cores, power};

static PROCESSES: spin::Mutex<Vec<Arc<Process>>> = spin::Mutex::new(Vec::new());
/// Serializes handling of the base's state.
static SERVICE_LOCK: spin::Mutex<()> = spin::Mutex::new(());
/// Power the node off after its last process.
static POWER_OFF_AFTER_LAST: AtomicBool = AtomicBool::new(false);
/// Some process has exited and is not reaped yet.
static REAP_PENDING: AtomicBool = AtomicBool::new(false);

/// Makes the node power off when its last process is reaped.
pub(crate) fn power_off_after_last() {
    POWER_OFF_AFTER_LAST.store(true, Ordering::Relaxed);
}

/// Handles the processes that the base has marked as pending. New threads are put into run queues.
pub fn service_pending(area: DelegationArea) {
    {
        let _service_lock = lock_service();
        area.take_pending_processes(|page| {
            if area.can_hold_process(page) {
                service(ProcessPages::at(area, page));
            }
        });
    }
    reap();
}

/// Takes the lock for handling the base's state.
fn lock_service() -> spin::MutexGuard<'static, ()> {
    cores::wait_for(|| SERVICE_LOCK.try_lock())
}

/// Adds a process.
pub(super) fn add(process: Arc<Process>) {
    PROCESSES.lock().push(process);
}

/// Handles all children of a process.
pub(super) fn service_children(parent: &Process) {
    let area = parent.pages().area();
    let _service_lock = lock_service();
    let all = area.processes().map(|page| ProcessPages::at(area, page));
    for pages in all.filter(|pages| pages.parent() == parent.pages().number()) {
        service(pages);
    }
}

/// Finds a thread of any process.
pub(super) fn handle(thread: u64) -> Option<Arc<ThreadHandle>> {
    let processes = PROCESSES.lock();
    let mut all = processes.iter();
    all.find_map(|process| process.signals().handle(thread))
}

/// Action for a process.
enum Action {
    Nothing,
    /// Load its program.
    Start,
    /// Start its nascent child's thread, if any, and take its signals.
    Service(Arc<Process>),
    Exit(Arc<Process>),
    /// Make the proxy of a child that will not run exit.
    KillProxy,
}

fn action(pages: &ProcessPages) -> Action {
    let processes = PROCESSES.lock();
    let find = |number| processes.iter().find(|one| one.pages().number() == number);
    let known = find(pages.number()).cloned();
    let is_parent_forking = || find(pages.parent()).is_some_and(|parent| parent.is_forking());
    match (pages.base_state(), known) {
        (base_state::STARTED, Some(process)) => Action::Service(process),
        (base_state::EXITED | base_state::QUIESCED, Some(process)) => Action::Exit(process),
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

fn service(pages: ProcessPages) {
    match action(&pages) {
        Action::Nothing => {}
        Action::Start => match loader::new_process(pages) {
            Some((process, thread)) => {
                add(Arc::clone(&process));
                cores::enqueue(thread);
                // Signals that arrived before.
                process.take_base_signals();
            }
            None => fork::kill_proxy(pages),
        },
        Action::Service(process) => {
            process.wake_up_new();
            process.update_stopped();
            process.take_base_signals();
        }
        Action::Exit(process) => {
            process.begin_exit();
            mark_reap_pending();
        }
        Action::KillProxy => fork::kill_proxy(pages),
    }
}

/// Requests reaping. Set with the table locked, or a concurrent [`take_reapable`] could clear it.
fn mark_reap_pending() {
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

/// Frees processes without threads whose memory the base no longer uses.
pub fn reap() {
    if !REAP_PENDING.load(Ordering::Acquire) {
        return;
    }
    for process in take_reapable() {
        process.pages().set_page_table(0);
        process.mm().remove_sharer(process.pages());
        let is_last = remove(&process);
        if is_last && POWER_OFF_AFTER_LAST.load(Ordering::Relaxed) {
            power::off("its last program has exited");
        }
    }
}

/// Takes the processes that can be reaped; each is returned once.
fn take_reapable() -> Vec<Arc<Process>> {
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

/// Removes a reaped process. Returns whether it was the last.
fn remove(process: &Arc<Process>) -> bool {
    let mut processes = PROCESSES.lock();
    processes.retain(|one| !Arc::ptr_eq(one, process));
    // Both changes are made under the lock.
    process.pages().set_state(process_state::REAPED);
    processes.is_empty()
}
