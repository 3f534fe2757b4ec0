//! Interrupts of a core.

use core::sync::atomic::{AtomicBool, Ordering};

use insula_bare::apic;
use insula_bare::called::{self, SharedPage};

use crate::hw::cores::{DOORBELL_VECTOR, RESCHEDULE_VECTOR, WAKE_VECTOR, mark_interrupted, number};
use crate::hw::{log, power, tlb};

/// The base has rung the doorbell, and no core has serviced it yet.
static DOORBELL_PENDING: AtomicBool = AtomicBool::new(false);

/// Handles an interrupt that arrived in a program, or while the kernel waited for one. What it
/// announces is serviced before the core next enters a program.
pub(crate) fn handle_interrupt(vector: u8) {
    if let Some(page) = called::page() {
        return handle_shared(page, vector);
    }
    if vector == apic::SPURIOUS_VECTOR {
        return;
    }
    apic::end_of_interrupt();
    mark_interrupted();
    handle_vector(vector);
}

/// The same on a shared core: all vectors but one are the base's.
fn handle_shared(page: SharedPage, vector: u8) {
    mark_interrupted();
    if vector == page.vector() {
        apic::end_of_interrupt();
        handle_ring(page);
    } else {
        page.take(vector);
    }
}

/// Handles what the base has announced to this kernel by its one vector.
pub(super) fn handle_ring(page: SharedPage) {
    mark_interrupted();
    mark_doorbell();
    page.take_pending(handle_vector);
}

fn handle_vector(vector: u8) {
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
