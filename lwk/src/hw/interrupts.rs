//! Interrupts of a core.

use core::sync::atomic::{AtomicBool, Ordering};

use insula_bare::apic;

use crate::hw::cores::{DOORBELL_VECTOR, RESCHEDULE_VECTOR, WAKE_VECTOR, mark_interrupted, number};
use crate::hw::{log, power, tlb};

/// The base has rung the doorbell, and no core has serviced it yet.
static DOORBELL_PENDING: AtomicBool = AtomicBool::new(false);

/// Handles an interrupt that arrived in a program, or while the kernel waited for one. What it
/// announces is serviced before the core next enters a program.
pub(crate) fn handle_interrupt(vector: u8) {
    if vector == apic::SPURIOUS_VECTOR {
        return;
    }
    apic::end_of_interrupt();
    mark_interrupted();
    match vector {
        RESCHEDULE_VECTOR if number() == 0 => log::count_resched(),
        DOORBELL_VECTOR => mark_doorbell(),
        WAKE_VECTOR => tlb::handle_requests(),
        power::BUTTON_VECTOR => power::off("the power button was pressed"),
        _ => {}
    }
}

/// Has a core service the base's doorbell.
pub(crate) fn mark_doorbell() {
    DOORBELL_PENDING.store(true, Ordering::Release);
}

/// Whether the base's doorbell is to be serviced.
pub(crate) fn is_doorbell_pending() -> bool {
    DOORBELL_PENDING.load(Ordering::Acquire)
}

/// Returns whether the base's doorbell is to be serviced; the caller does that.
pub(crate) fn take_doorbell() -> bool {
    DOORBELL_PENDING.swap(false, Ordering::AcqRel)
}
