//! The node's cores: their numbers, waking each other, interrupts to service.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_abi::pci::PCI_INTERRUPTS_MAX;
use insula_bare::called::{self, SharedPage};
use insula_bare::per_core::{self, PerCore};
use insula_bare::{apic, cpu, program_mode};
use spin::Once;

/// Vector of the reschedule IPI (Linux' `RESCHEDULE_VECTOR`), which the base also sends as a health
/// probe.
pub const RESCHEDULE_VECTOR: u8 = 0xfd;
/// Vector of the base's doorbell, on a core that is not shared.
pub const DOORBELL_VECTOR: u8 = 0x31;
/// Vector by which cores of this kernel wake each other and request TLB flushes.
pub(super) const WAKE_VECTOR: u8 = 0x32;
/// Vectors of PCI functions' messages.
pub(crate) const MESSAGE_VECTORS: Range<u8> = 0x40..0x40 + PCI_INTERRUPTS_MAX as u8;

/// Size of a core's stack, in bytes.
pub(crate) const STACK_SIZE: usize = 64 << 10;
/// Maximum number of cores of a node.
pub(crate) const CORES_MAX: usize = insula_abi::NODE_CPUS_MAX;

static SET_UP: AtomicBool = AtomicBool::new(false);
static UP: AtomicU32 = AtomicU32::new(0);
static APIC_IDS: Once<Vec<u32>> = Once::new();
/// Whether each core took an interrupt and has not serviced pending work since.
static INTERRUPTED: [Interrupted; CORES_MAX] =
    [const { Interrupted(AtomicBool::new(false)) }; CORES_MAX];

/// A flag in a cache line of its own: each core writes its flag whenever it services pending work.
#[repr(align(64))]
struct Interrupted(AtomicBool);

/// Returns the index of the calling core; 0 before other cores are started.
#[must_use]
pub fn number() -> u32 {
    match SET_UP.load(Ordering::Relaxed) {
        true => per_core::current().index,
        false => 0,
    }
}

/// Returns the number of running cores.
#[must_use]
pub fn up() -> u32 {
    UP.load(Ordering::Acquire)
}

/// Calls `visit` with the index and APIC id of each other core.
pub(super) fn for_others(mut visit: impl FnMut(u32, u32)) {
    let own = number();
    for (&apic_id, index) in APIC_IDS.get().into_iter().flatten().zip(0..up()) {
        if index != own {
            visit(index, apic_id);
        }
    }
}

/// Calls `visit` with the APIC id of each other core.
pub(crate) fn for_other_apic_ids(mut visit: impl FnMut(u32)) {
    for_others(|_, apic_id| visit(apic_id));
}

/// Has another core service pending work.
pub(crate) fn wake(core: u32) {
    if core != number() {
        interrupt(core);
    }
}

/// Returns the APIC id of a core.
pub(crate) fn apic_id(core: u32) -> Option<u32> {
    let apic_ids = APIC_IDS.get()?;
    apic_ids.get(core as usize).copied()
}

/// Interrupts a core, so that it services pending work; the calling core does so before it next
/// enters a program.
pub(crate) fn interrupt(core: u32) {
    if let Some(apic_id) = apic_id(core) {
        // Of a shared core, which is the only one, all vectors but the doorbell's are the base's.
        let vector = called::page().map_or(WAKE_VECTOR, SharedPage::vector);
        apic::send_ipi(apic_id, vector);
    }
}

/// Retries until `attempt` succeeds, and handles interrupts meanwhile: the owner of what is awaited
/// may be waiting for this core to handle an IPI.
pub(crate) fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        cpu::poll_interrupts();
        cpu::relax();
    }
}

/// Has all other cores service pending work. Who ends what others wait for has the own core do so, too
/// ([`crate::base::polling::poll_all`]): it may have polled them just before, and sleep.
pub(crate) fn wake_all() {
    for_other_apic_ids(|apic_id| apic::send_ipi(apic_id, WAKE_VECTOR));
}

/// Stores the APIC ids of the cores.
pub(crate) fn set_apic_ids(apic_ids: &[u32]) {
    APIC_IDS.call_once(|| apic_ids[..apic_ids.len().min(CORES_MAX)].to_vec());
}

/// Sets up the calling core as one of the kernel's.
pub(crate) fn set_up(index: u32, apic_id: u32) {
    let area = Box::leak(Box::new(PerCore::new(index, apic_id)));
    area.install();
    program_mode::enable();
    SET_UP.store(true, Ordering::Relaxed);
}

/// Counts the calling core as running.
pub(crate) fn mark_up() {
    UP.fetch_add(1, Ordering::AcqRel);
}

/// Returns the doorbell of the calling core.
pub(crate) fn doorbell() -> u64 {
    let apic_id = u64::from(per_core::current().apic_id);
    let vector = called::page().map_or(DOORBELL_VECTOR, SharedPage::vector);
    DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | u64::from(vector)
}

fn interrupted() -> &'static AtomicBool {
    &INTERRUPTED[number() as usize % CORES_MAX].0
}

/// Whether the calling core took an interrupt and has not serviced pending work since.
pub(crate) fn is_interrupted() -> bool {
    interrupted().load(Ordering::Relaxed)
}

/// Has the calling core service pending work before it next enters a program or sleeps.
pub(crate) fn mark_interrupted() {
    interrupted().store(true, Ordering::Relaxed);
}

/// Clears that: the calling core is about to service pending work.
pub(crate) fn ack_interrupts() {
    interrupted().store(false, Ordering::Relaxed);
}
