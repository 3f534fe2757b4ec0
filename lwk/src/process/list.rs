//! All processes, as the base begins and ends them.
//!
//! Several cores may hear of a process at the same time, and one may still be dealing with what came
//! before: looking at what the base says is for one core at a time. Who frees a process does so
//! without that, and it stays in the list until the base is told that all of it is freed, and may use
//! its pages for another.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use insula_abi::lwk::{base_state, process_state};

use super::signals::Notice;
use super::{Process, begin, fork};
use crate::delegation::{Area, ProcessPages};
use crate::{cores, power};

static PROCESSES: spin::Mutex<Vec<Arc<Process>>> = spin::Mutex::new(Vec::new());
/// Whoever has it is the only one who looks.
static LOOKING: spin::Mutex<()> = spin::Mutex::new(());
/// The node switches itself off when no program is left.
static ONCE: AtomicBool = AtomicBool::new(false);
/// Some process has ended and is still to be freed.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Has the node switch itself off when its last program has ended.
pub(crate) fn end_with_programs() {
    ONCE.store(true, Ordering::Relaxed);
}

/// Looks at the processes that the base wants to be looked at. Their first threads go to cores.
pub fn look(area: Area) {
    {
        let _alone = looking();
        area.take_attention(|page| {
            if area.can_hold_process(page) {
                look_at(ProcessPages::at(area, page));
            }
        });
    }
    tend();
}

/// Waits until nobody else looks.
fn looking() -> spin::MutexGuard<'static, ()> {
    cores::wait_for(|| LOOKING.try_lock())
}

/// Takes in a process that is a copy of another.
pub(super) fn add(process: Arc<Process>) {
    PROCESSES.lock().push(process);
}

/// Looks at all copies of a program.
pub(super) fn look_at_copies(parent: &Process) {
    let area = parent.pages().area();
    let _alone = looking();
    let all = area.processes().map(|page| ProcessPages::at(area, page));
    for pages in all.filter(|pages| pages.parent() == parent.pages().number()) {
        look_at(pages);
    }
}

/// By what a thread is told, of whichever program.
pub(super) fn notice(thread: u64) -> Option<Arc<Notice>> {
    let processes = PROCESSES.lock();
    let mut all = processes.iter();
    all.find_map(|process| process.signals().notice(thread))
}

/// What is to be done about a process.
enum Deed {
    Nothing,
    /// Begin its program.
    Begin,
    /// Have it run if it is a copy that is ready, and take what has come for it.
    GoOn(Arc<Process>),
    End(Arc<Process>),
    /// End the proxy of a copy that will not run.
    Abandon,
}

fn deed(pages: &ProcessPages) -> Deed {
    let processes = PROCESSES.lock();
    let find = |number| processes.iter().find(|one| one.pages().number() == number);
    let known = find(pages.number()).cloned();
    let is_being_copied = || find(pages.parent()).is_some_and(|parent| parent.is_forking());
    match (pages.base_state(), known) {
        (base_state::BEGUN, Some(process)) => Deed::GoOn(process),
        (base_state::ENDED | base_state::GONE, Some(process)) => Deed::End(process),
        // Its parent has yet to hear of it, and looks then.
        (_, None) if is_being_copied() => Deed::Nothing,
        (base_state::BEGUN, None) if pages.parent() == 0 => Deed::Begin,
        (base_state::BEGUN, None) => Deed::Abandon,
        (base_state::GONE, None) => {
            pages.set_state(process_state::DONE);
            Deed::Nothing
        }
        _ => Deed::Nothing,
    }
}

fn look_at(pages: ProcessPages) {
    match deed(&pages) {
        Deed::Nothing => {}
        Deed::Begin => match begin::process(pages) {
            Some((process, thread)) => {
                add(Arc::clone(&process));
                cores::send(thread);
                // What came before.
                process.take_sent();
            }
            None => fork::abandon(pages),
        },
        Deed::GoOn(process) => {
            process.hatch();
            process.look_at_stop();
            process.take_sent();
        }
        Deed::End(process) => {
            process.end();
            note_end();
        }
        Deed::Abandon => fork::abandon(pages),
    }
}

/// Some process has ended. Only who has the list says so, or that there is none: else a look at the list
/// that is under way would hide it.
fn note_end() {
    let _processes = PROCESSES.lock();
    ENDED.store(true, Ordering::Release);
}

/// Whether memory will be free since a process has ended.
pub(crate) fn is_any_ending() -> bool {
    let has_ended = |process: &Arc<Process>| {
        process.is_ending() || process.pages().base_state() >= base_state::ENDED
    };
    PROCESSES.lock().iter().any(has_ended)
}

/// Frees processes that have no thread any more, and of which the base holds nothing.
pub fn tend() {
    if !ENDED.load(Ordering::Acquire) {
        return;
    }
    for process in choose_free() {
        process.pages().set_page_table(0);
        process.memory().leave(process.pages());
        let is_last = remove(&process);
        if is_last && ONCE.load(Ordering::Relaxed) {
            power::off("its programs have ended");
        }
    }
}

/// The processes that can be freed, by the caller alone.
fn choose_free() -> Vec<Arc<Process>> {
    let processes = PROCESSES.lock();
    let can_be_freed = |process: &Process| {
        let is_gone = process.pages().base_state() == base_state::GONE;
        is_gone && process.threads.load(Ordering::Acquire) == 0
    };
    let (mut free, mut more) = (Vec::new(), false);
    for process in processes.iter().filter(|process| process.is_ending()) {
        match can_be_freed(process) {
            true if !process.freed.swap(true, Ordering::AcqRel) => free.push(Arc::clone(process)),
            true => {}
            false => more = true,
        }
    }
    ENDED.store(more, Ordering::Release);
    free
}

/// Takes out a process that has been freed; whether no other is left.
fn remove(process: &Arc<Process>) -> bool {
    let mut processes = PROCESSES.lock();
    processes.retain(|one| !Arc::ptr_eq(one, process));
    // Who looks sees both or neither.
    process.pages().set_state(process_state::DONE);
    processes.is_empty()
}
