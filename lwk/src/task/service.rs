//! Handling what the base announces about processes: starts, signals, stops, exits.
//!
//! Several cores may be notified of the same process, so this is done under a lock.

use alloc::sync::Arc;

use crate::base::area::{DelegationArea, area};
use crate::base::process_pages::ProcessPages;
use crate::hw::cores;
use crate::task::process::Process;
use crate::task::process_fault::{deny_faults, take_retry};
use crate::task::process_table::{Action, action, add, mark_reap_pending};
use crate::task::reap::reap;
use crate::task::{loader, run_queue, wake_up_new};

/// Serializes handling of the base's state.
static SERVICE_LOCK: spin::Mutex<()> = spin::Mutex::new(());

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

/// Retries faults of processes that had to wait.
pub(crate) fn retry_faults() {
    if !take_retry() {
        return;
    }
    if let Some(area) = area() {
        let _service_lock = lock_service();
        let all = area.processes().map(|page| ProcessPages::at(area, page));
        all.for_each(service);
    }
}

/// Takes the lock for handling the base's state.
fn lock_service() -> spin::MutexGuard<'static, ()> {
    cores::wait_for(|| SERVICE_LOCK.try_lock())
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

fn service(pages: ProcessPages) {
    match action(&pages) {
        Action::Nothing => {}
        Action::Start => match loader::new_process(pages) {
            Some((process, thread)) => {
                add(Arc::clone(&process));
                run_queue::enqueue(thread);
                // Signals that arrived before.
                process.take_base_signals();
                process.resolve_faults();
            }
            None => wake_up_new::kill_proxy(pages),
        },
        Action::Service(process) => {
            process.wake_up_new();
            process.update_stopped();
            process.update_leaving();
            process.take_base_signals();
            process.resolve_faults();
        }
        Action::Exit(process) => {
            process.begin_exit();
            // The base may access its memory to the end.
            process.resolve_faults();
            mark_reap_pending();
        }
        Action::KillProxy => {
            deny_faults(&pages);
            wake_up_new::kill_proxy(pages);
        }
    }
}
