//! All processes, as the base begins and ends them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use insula_abi::lwk::{base_state, process_state};

use super::signals::Notice;
use super::{Process, begin, fork};
use crate::delegation::{Area, ProcessPages};
use crate::{cores, power};

static PROCESSES: spin::Mutex<Vec<Arc<Process>>> = spin::Mutex::new(Vec::new());
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
    area.take_attention(|page| {
        if area.can_hold_process(page) {
            look_at(ProcessPages::at(area, page));
        }
    });
    tend();
}

/// Takes in a process that is a copy of another.
pub(super) fn add(process: Arc<Process>) {
    PROCESSES.lock().push(process);
}

/// Looks at all copies of a program.
pub(super) fn look_at_copies(parent: &Process) {
    let area = parent.pages().area();
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

fn known(number: u64) -> Option<Arc<Process>> {
    let processes = PROCESSES.lock();
    let mut same = processes
        .iter()
        .filter(|one| one.pages().number() == number);
    same.next().cloned()
}

fn look_at(pages: ProcessPages) {
    match (pages.base_state(), known(pages.number())) {
        (_, None) if pages.parent() != 0 => {
            fork::unknown(pages, known(pages.parent()).as_deref());
        }
        (base_state::BEGUN, None) => {
            if let Some((process, thread)) = begin::process(pages) {
                PROCESSES.lock().push(process);
                cores::send(thread);
            }
        }
        (base_state::ENDED | base_state::GONE, Some(process)) => {
            process.end();
            ENDED.store(true, Ordering::Release);
        }
        (base_state::BEGUN, Some(process)) => {
            process.hatch();
            process.take_sent();
        }
        (base_state::GONE, None) => pages.set_state(process_state::DONE),
        _ => {}
    }
}

/// Frees processes that have no thread any more, and of which the base holds nothing.
pub fn tend() {
    if !ENDED.load(Ordering::Acquire) {
        return;
    }
    for process in take_free() {
        process.pages().set_page_table(0);
        process.memory().leave(process.pages());
        process.pages().set_state(process_state::DONE);
        if ONCE.load(Ordering::Relaxed) && PROCESSES.lock().is_empty() {
            power::off("its programs have ended");
        }
    }
}

/// Takes out the processes that can be freed.
fn take_free() -> Vec<Arc<Process>> {
    let mut processes = PROCESSES.lock();
    let (free, rest) = processes.drain(..).partition(|process: &Arc<Process>| {
        let is_gone = process.pages().base_state() == base_state::GONE;
        is_gone && process.threads.load(Ordering::Acquire) == 0
    });
    *processes = rest;
    let more = processes.iter().any(|process| process.is_ending());
    ENDED.store(more, Ordering::Release);
    free
}
