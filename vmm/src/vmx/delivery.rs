//! Events that a guest takes: fields of the VMCS that say what, and when.
//!
//! Source: Intel SDM volume 3, 25.8.3, 27.6 "Event Injection", and 28.2.4.

use super::controls::Primary;
use super::exit::{self, Event};
use super::vmcs::{Vmcs, field};
use super::{BLOCKED_BY_NMI, BLOCKED_ONCE, CR0_PE, UNBLOCKED_NMIS};

/// Interrupts are enabled.
const RFLAGS_IF: u64 = 1 << 9;

impl Vmcs {
    /// Has an event delivered again whose delivery was interrupted by the exit.
    pub(super) fn keep_undelivered(&mut self) {
        let event = Event(self.read(field::UNDELIVERED_EVENT) as u32);
        if !event.is_valid() {
            return self.keep_nmis_blocked();
        }
        if event.is_nmi() {
            self.set_interruptibility(BLOCKED_BY_NMI, 0);
        }
        let error = self.read(field::UNDELIVERED_ERROR_CODE);
        self.deliver(event, error);
    }

    /// An IRET that has ended the blocking of NMIs, and then missed a page, is executed again (Intel SDM
    /// volume 3, 28.2.3).
    fn keep_nmis_blocked(&mut self) {
        let is_memory = exit::is_memory(self.read(field::EXIT_REASON) as u32);
        if is_memory && self.read(field::EXIT_QUALIFICATION) & UNBLOCKED_NMIS != 0 {
            self.set_interruptibility(0, BLOCKED_BY_NMI);
        }
    }

    /// Has the guest enter an event's handler.
    pub(super) fn deliver(&mut self, event: Event, error: u64) {
        // In real mode exceptions have no error codes.
        let is_real = self.read(field::GUEST_CR0) & CR0_PE == 0;
        let event = event.to_deliver() & !(u32::from(is_real) << 11);
        let length = self.read(field::EXIT_INSTRUCTION_LENGTH);
        self.write_all([
            (field::ENTRY_EVENT, event.into()),
            (field::ENTRY_ERROR_CODE, error),
            (field::ENTRY_INSTRUCTION_LENGTH, length),
        ]);
    }

    /// Whether an event is delivered as soon as the guest runs.
    pub(super) fn has_event(&self) -> bool {
        Event(self.read(field::ENTRY_EVENT) as u32).is_valid()
    }

    /// Whether the guest would take an interrupt now.
    pub(super) fn takes_interrupts(&self) -> bool {
        let is_blocked = self.read(field::GUEST_INTERRUPTIBILITY) & BLOCKED_ONCE != 0;
        self.read(field::GUEST_RFLAGS) & RFLAGS_IF != 0 && !is_blocked && !self.has_event()
    }

    pub(super) fn set_interruptibility(&mut self, clear: u64, set: u64) {
        let value = self.read(field::GUEST_INTERRUPTIBILITY);
        self.write(field::GUEST_INTERRUPTIBILITY, value & !clear | set);
    }

    /// Has the guest exit as soon as it can take what the window is for, or not.
    pub(super) fn set_window(&mut self, window: Primary, exits: bool) {
        let mut controls = self.read(field::PRIMARY_CONTROLS) & !u64::from(window.bits());
        if exits {
            controls |= u64::from(window.bits());
        }
        self.write(field::PRIMARY_CONTROLS, controls);
    }

    /// Goes on behind the instruction that exited.
    pub(super) fn skip_instruction(&mut self) {
        let length = self.read(field::EXIT_INSTRUCTION_LENGTH);
        let rip = self.read(field::GUEST_RIP);
        self.write(field::GUEST_RIP, rip.wrapping_add(length));
        self.set_interruptibility(BLOCKED_ONCE, 0);
    }

    /// Whether a program runs, not the kernel.
    pub(super) fn is_in_program(&self) -> bool {
        let stack = self.read(field::GUEST_SEGMENT_ATTRIBUTES + super::segment::SS);
        stack >> 5 & 3 == 3
    }
}
