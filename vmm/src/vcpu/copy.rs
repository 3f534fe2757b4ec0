//! Cores of a copy of a node: they go on from the states of the original's cores, seem to have their
//! APIC ids, and ask the module for each page that they write first.

use core::sync::atomic::Ordering;

use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_FOREIGN};
use insula_abi::monitor::{MonitorEnd, PAGE_FOREIGN, PAGE_NO_MEMORY, PAGE_WANTED};
use insula_bare::{apic, cpu};

use super::{Core, Outcome, ending};
use crate::guest::Guest;
use crate::policy::msr;
use crate::requests::Requests;
use crate::state;

/// Polls for a page before the module is rung again: a ring may get lost while its target moves.
const POLLS: u32 = 100_000;

/// Rings a doorbell of another kernel. The base's are marked, for a copy.
pub(super) fn ring(apic_id: u32, vector: u8) {
    let foreign = (DOORBELL_FOREIGN >> DOORBELL_APIC_SHIFT) as u32;
    apic::send_ipi(apic_id & !foreign, vector);
}

impl<G: Guest> Core<G> {
    /// Goes on from the state in the core's area.
    pub(super) fn go_on(&mut self) {
        self.is_copy = true;
        let offset = self.area.header().tsc_offset();
        // SAFETY: such a state was left by a core with this kind of guest.
        match unsafe { state::load(self.area, offset) } {
            Some(paused) => {
                self.guest.resume(paused);
                self.guest.disguise(offset);
                self.area.set_running(true);
                let interrupt = self.area.header().interrupt();
                if let Some(vector) = interrupt.filter(|_| self.area.index() == 0) {
                    // Before its first instruction, or as soon as it takes interrupts.
                    apic::send_ipi(self.area.apic_id(), vector);
                }
            }
            // The original's waited for its start.
            None => self.guest.disguise(offset),
        }
    }

    /// A register of another value than the core's.
    pub(super) fn read_disguised(&self, register: u32) -> Option<u64> {
        if !self.is_copy {
            return None;
        }
        let apic_id = self.area.guest_apic_id();
        match register {
            msr::APIC_ID => Some(apic_id.into()),
            msr::LOGICAL_ID => Some(msr::logical_id(apic_id).into()),
            msr::DEADLINE if apic::has_deadline() => {
                // SAFETY: the processor has the register; reading changes nothing.
                let at = unsafe { cpu::read_msr(register) };
                Some(state::shift(at, self.area.header().tsc_offset()))
            }
            _ => None,
        }
    }

    /// Writes a register another value than the guest says. Returns whether it is one.
    pub(super) fn write_disguised(&self, register: u32, value: u64) -> bool {
        if !self.is_copy || register != msr::DEADLINE || !apic::has_deadline() {
            return false;
        }
        let offset = self.area.header().tsc_offset().wrapping_neg();
        // SAFETY: the processor has the register, which is the guest's.
        unsafe { cpu::write_msr(register, state::shift(value, offset)) }
        true
    }

    /// The guest has written a page that it shares, or that is not its memory: only the module knows,
    /// and until it has answered, the guest exits again. Requests of others are carried out here: an
    /// interrupt whose delivery needs the page keeps their NMI from being seen.
    pub(super) fn ask_for_page(&mut self, address: u64, error: u64) -> Outcome {
        let word = self.area.page_request();
        if !self.waits_for_page {
            self.waits_for_page = true;
            word.store(address & !0xfff | PAGE_WANTED, Ordering::Release);
        }
        self.wait_for_page();
        let answer = word.load(Ordering::Acquire);
        if answer & PAGE_WANTED != 0 {
            self.serve_early();
            return Ok(());
        }
        self.waits_for_page = false;
        match answer {
            PAGE_NO_MEMORY => Err(ending(MonitorEnd::NO_MEMORY, address, error)),
            PAGE_FOREIGN => Err(ending(MonitorEnd::MEMORY, address, error)),
            _ => {
                self.flush();
                Ok(())
            }
        }
    }

    fn serve_early(&mut self) {
        let requests = Requests::take(self.area.requests());
        self.nmi_is_late |= !requests.is_empty();
        self.serve(requests);
    }

    fn wait_for_page(&self) {
        let doorbell = self.area.header().page_doorbell();
        let (wanted, requests) = (self.area.page_request(), self.area.requests());
        loop {
            ring((doorbell >> DOORBELL_APIC_SHIFT) as u32, doorbell as u8);
            for _ in 0..POLLS {
                if wanted.load(Ordering::Acquire) & PAGE_WANTED == 0
                    || requests.load(Ordering::Relaxed) != 0
                {
                    return;
                }
                cpu::relax();
            }
        }
    }
}
