//! A core that the base shares: leaving it, and the timer.
//!
//! This kernel goes first, but leaves for each interrupt of the base as soon as its core loop gets
//! there, and when it is idle. On a core of its own all this is the local APIC's.

use insula_abi::shared_core::{LEAVE_DEADLINE, LEAVE_IDLE, LEAVE_INTERRUPTED};
use insula_bare::called::{self, SharedPage};
use insula_bare::{apic, cpu};

use crate::hw::clock;
use crate::hw::cores::mark_interrupted;
use crate::hw::interrupts::handle_ring;

/// Whether the base shares this core. Then it does not help to poll for its replies: it may be this
/// core that is to give them.
pub(crate) fn is_shared() -> bool {
    called::page().is_some()
}

/// Leaves the core if an interrupt of the base has come.
pub(crate) fn leave_if_interrupted() {
    if let Some(page) = called::page().filter(|page| page.is_taken()) {
        leave(page, LEAVE_INTERRUPTED);
    }
}

/// Leaves the core, and handles what has come when it is entered again.
fn leave(page: SharedPage, reason: u64) {
    page.leave(reason);
    // An NMI may have come while the core was switched.
    while page.is_taken() {
        page.leave(LEAVE_INTERRUPTED);
    }
    handle_ring(page);
}

/// Waits for an interrupt, of the timer that is armed or another.
pub(crate) fn wait_for_interrupt() {
    match called::page() {
        None => cpu::wait_for_interrupt(),
        Some(page) => leave(page, LEAVE_IDLE),
    }
}

/// Arms the timer of this core, for a time of the time stamp counter.
pub(crate) fn set_timer(at: u64) {
    let Some(page) = called::page() else {
        return apic::set_timer(at, clock::tsc_khz());
    };
    if at <= clock::stamp() {
        mark_interrupted();
    } else if !page.set_deadline(Some(at)) {
        leave(page, LEAVE_DEADLINE);
    }
}

/// Arms the timer for the next wait, which tells the base.
pub(crate) fn set_timer_to_wait(at: u64) {
    match called::page() {
        None => apic::set_timer(at, clock::tsc_khz()),
        Some(page) => {
            let _known = page.set_deadline(Some(at));
        }
    }
}

/// Disarms the timer of this core.
pub(crate) fn stop_timer() {
    match called::page() {
        None => apic::stop_timer(),
        Some(page) => {
            let _known = page.set_deadline(None);
        }
    }
}
