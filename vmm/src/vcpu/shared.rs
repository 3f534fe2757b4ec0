//! A lightweight kernel that shares the core with the node's, and goes first.

use insula_abi::channel::DOORBELL_APIC_SHIFT;
use insula_abi::shared_core::{LEAVE_ENDED, LEAVE_IDLE};
use insula_bare::{apic, cpu};

use super::Core;
use crate::guest::Guest;
use crate::policy::share::Budget;
use crate::share::{SharedExit, SharedGuest as _, Words};

/// Such a kernel, and what it is doing.
#[derive(Debug)]
pub(super) struct Sharing<G: Guest> {
    guest: G::Shared,
    budget: Budget,
    /// It has left: it looks at all there is when it is entered again.
    has_left: bool,
    /// And until it is rung it has nothing to do.
    is_idle: bool,
    /// It was rung, and has not been entered since.
    is_rung: bool,
    /// The node's kernel handles its interrupts first.
    is_interrupted: bool,
}

impl<G: Guest> Sharing<G> {
    fn wants_core(&self) -> bool {
        self.is_rung || !self.is_idle && !self.is_interrupted
    }

    /// Prepares an entry. Returns when the module is to be rung during it.
    fn prepare(&mut self, words: &Words, now: u64, left: u64) -> u64 {
        let deadline = words.deadline();
        let is_due = deadline <= now;
        if (self.is_rung || is_due) && !self.has_left {
            self.guest.interrupt(words.vector());
        }
        (self.has_left, self.is_idle, self.is_rung) = (false, false, false);
        self.is_interrupted = false;
        words.count_entry(now);
        match now.wrapping_add(left) {
            end if is_due => end,
            end => end.min(deadline),
        }
    }

    /// It has left by a call. Returns whether for good. It may have been rung before, and have left with
    /// interrupts off.
    fn has_left_for_good(&mut self, words: &Words) -> bool {
        self.has_left = true;
        self.is_idle = words.reason() == LEAVE_IDLE;
        self.is_rung |= self.guest.withdraw_interrupt() || words.deadline() <= cpu::time_stamp();
        words.reason() == LEAVE_ENDED
    }
}

impl<G: Guest> Core<G> {
    /// The module has asked to look after such a kernel: it is rung, has been opened, or closed.
    pub(super) fn look_after_shared(&mut self) {
        let words = self.area.share();
        let open = words.open();
        if open != self.shared_open {
            self.end_shared();
            self.shared_open = open;
            if open != 0 {
                self.start_shared();
            }
        }
        if let Some(shared) = &mut self.shared {
            shared.is_rung = true;
        }
    }

    fn start_shared(&mut self) {
        let words = self.area.share();
        words.set_runs(true);
        let (period, budget) = words.bound();
        let is_wanted = words.open() == self.shared_open;
        let start = || {
            // SAFETY: the area is this core's, and the guest before has ended.
            unsafe { G::start_shared(self.area, &words.entry()) }
        };
        let guest = is_wanted.then(start).flatten();
        self.shared = guest.map(|guest| Sharing {
            guest,
            budget: Budget::new(period, budget),
            has_left: true,
            is_idle: true,
            is_rung: true,
            is_interrupted: false,
        });
        words.set_runs(self.shared.is_some());
    }

    fn end_shared(&mut self) {
        if self.shared.take().is_some() {
            let words = self.area.share();
            self.set_wake_at(&words, u64::MAX);
            // Then the module may destroy its doorbell.
            ring(words.doorbell());
            words.set_runs(false);
        }
        self.guest.set_interrupt_window(false);
    }

    fn set_wake_at(&self, words: &Words, at: u64) {
        if words.set_wake_at(at) {
            ring(words.doorbell());
        }
    }

    /// Runs such a kernel for as long as it goes first.
    pub(super) fn run_shared(&mut self) {
        let words = self.area.share();
        while let Some(shared) = &mut self.shared {
            if !shared.wants_core() {
                if shared.is_idle {
                    self.set_wake_at(&words, words.deadline());
                }
                return;
            }
            // What is to be delivered to the node's kernel is not kept from it.
            if self.guest.has_event() {
                return self.wait_for_interrupt_window();
            }
            let now = cpu::time_stamp();
            let Some(left) = shared.budget.left(now) else {
                let renewed_at = shared.budget.renewed_at();
                return self.set_wake_at(&words, renewed_at);
            };
            if !self.enter_shared(&words, now, left) {
                return;
            }
        }
    }

    /// Has the node's kernel exit when it takes interrupts, or soon: a handler may not return, and an
    /// emulator may miss the moment.
    fn wait_for_interrupt_window(&mut self) {
        self.guest.set_interrupt_window(true);
        if let Some(shared) = &mut self.shared {
            (shared.is_interrupted, shared.is_rung) = (true, false);
            let again = cpu::time_stamp().wrapping_add(shared.budget.period() / 10);
            shared.is_idle = false;
            self.set_wake_at(&self.area.share(), again);
        }
    }

    pub(super) fn end_interrupt_window(&mut self) {
        self.guest.set_interrupt_window(false);
        if let Some(shared) = &mut self.shared {
            shared.is_interrupted = false;
        }
    }

    /// The node's kernel returns from an interrupt, or an NMI.
    pub(super) fn answer_interrupt_return(&mut self) {
        self.guest.interrupt_return();
        if self
            .shared
            .as_ref()
            .is_some_and(|shared| shared.is_interrupted)
        {
            let soon = cpu::time_stamp().wrapping_add(self.area.share().bound().0 / 10);
            self.set_wake_at(&self.area.share(), soon);
        }
    }

    /// Enters it once. Returns whether it may be entered again at once.
    fn enter_shared(&mut self, words: &Words, now: u64, left: u64) -> bool {
        let interrupted =
            self.area.is_running() && self.paused.is_none() && self.guest.takes_interrupts();
        let Some(shared) = &mut self.shared else {
            return false;
        };
        let wake_at = shared.prepare(words, now, left);
        if words.set_wake_at(wake_at) {
            ring(words.doorbell());
        }
        let exit = shared.guest.run(interrupted);
        shared.budget.spend(now, cpu::time_stamp());
        match exit {
            SharedExit::Left if shared.has_left_for_good(words) => self.end_shared(),
            SharedExit::Left => {}
            SharedExit::Interrupt(vector) => {
                shared.is_interrupted = true;
                self.guest.set_interrupt_window(true);
                if let Some(vector) = vector {
                    self.guest.deliver_interrupt(vector);
                }
                return false;
            }
            SharedExit::Nmi => self.answer_nmi(),
            SharedExit::Fault(code) => {
                words.set_fault(code);
                self.end_shared();
            }
        }
        true
    }
}

/// Rings the module.
fn ring(doorbell: u64) {
    if doorbell != 0 {
        apic::send_ipi((doorbell >> DOORBELL_APIC_SHIFT) as u32, doorbell as u8);
    }
}
