//! Interrupts of a core.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use insula_bare::called::{self, SharedPage};
use insula_bare::{apic, trap};
use spin::Once;

use crate::hw::cores::{
    CORES_MAX, DOORBELL_VECTOR, MESSAGE_VECTORS, RESCHEDULE_VECTOR, WAKE_VECTOR, mark_interrupted,
    number,
};
use crate::hw::{clock, log, power, tlb};

/// The base has rung the doorbell, and no core has serviced it yet.
static DOORBELL_PENDING: AtomicBool = AtomicBool::new(false);
/// Messages of PCI functions that have come and that nobody has taken: a bit for each of [`MESSAGE_VECTORS`].
static MESSAGES: AtomicU64 = AtomicU64::new(0);

/// Words of the base's, one for each core, where it stores when it has handled a doorbell.
static HANDLED_AT: [Once<&'static AtomicU64>; CORES_MAX] = [const { Once::new() }; CORES_MAX];

/// Has the calling core store in a word the time stamp counter when it handles a doorbell.
pub(crate) fn store_times(word: &'static AtomicU64) {
    HANDLED_AT[number() as usize % CORES_MAX].call_once(|| word);
}

/// Stores the time of a doorbell: as early as it is known to be one. Has a place of its own, to which the benchmarks
/// count what an interrupt takes.
#[inline(never)]
fn store_time() {
    if let Some(word) = HANDLED_AT[number() as usize % CORES_MAX].get() {
        word.store(clock::stamp(), Ordering::Relaxed);
    }
}

/// Handles an interrupt that arrived in a program, or while the kernel waited for one. What it
/// announces is serviced before the core next enters a program.
pub(crate) fn handle_interrupt(vector: u8) {
    if let Some(page) = called::page() {
        return handle_shared(page, vector);
    }
    if vector == apic::SPURIOUS_VECTOR {
        return;
    }
    if vector == DOORBELL_VECTOR {
        store_time();
    }
    apic::end_of_interrupt();
    mark_interrupted();
    handle_vector(vector);
}

/// The same on a shared core: all vectors but one are the base's.
fn handle_shared(page: SharedPage, vector: u8) {
    mark_interrupted();
    if vector == page.vector() {
        if !page.is_vector_virtual() {
            apic::end_of_interrupt();
        }
        handle_ring(page);
        return;
    }
    page.take(vector);
    if page.ends_interrupts() && vector != trap::NMI && vector != apic::SPURIOUS_VECTOR {
        apic::end_of_interrupt();
    }
}

/// Handles what the base has announced to this kernel by its one vector.
pub(super) fn handle_ring(page: SharedPage) {
    store_time();
    mark_interrupted();
    mark_doorbell();
    page.take_pending(handle_vector);
}

fn handle_vector(vector: u8) {
    match vector {
        RESCHEDULE_VECTOR if number() == 0 => log::count_resched(),
        DOORBELL_VECTOR => mark_doorbell(),
        WAKE_VECTOR => tlb::handle_requests(),
        vector if MESSAGE_VECTORS.contains(&vector) => {
            note_message(usize::from(vector - MESSAGE_VECTORS.start));
        }
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

/// Notes that a message has come, by the index of its vector.
pub(crate) fn note_message(index: usize) {
    MESSAGES.fetch_or(1 << index, Ordering::Release);
}

/// Returns the messages that have come, a bit for each; the caller delivers them.
pub(crate) fn take_messages() -> u64 {
    match MESSAGES.load(Ordering::Relaxed) {
        0 => 0,
        _ => MESSAGES.swap(0, Ordering::AcqRel),
    }
}
