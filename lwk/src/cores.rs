//! The kernel's cores: starting them, their loop, their interrupts.

mod blocked;
mod counters;
mod schedule;
mod stealing;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use insula_abi::channel::{DOORBELL_APIC_SHIFT, DOORBELL_VALID};
use insula_bare::per_core::{self, PerCore};
use insula_bare::{PhysAddr, apic, cpu, mitigation};
use spin::Once;

use crate::delegation::DelegationArea;
use crate::{log, power};

pub(crate) use blocked::{armed_doorbell, note_reply, poll_after, poll_all, sleep_until};
pub(crate) use counters::{Counter, count, count_call};
pub(crate) use schedule::{end_thread, enqueue, run};
pub(crate) use stealing::least_loaded;

/// Vector of the reschedule IPI (Linux' `RESCHEDULE_VECTOR`), which the base also sends as a health
/// probe.
pub const RESCHEDULE_VECTOR: u8 = 0xfd;
/// Vector of the base's doorbell.
pub const DOORBELL_VECTOR: u8 = 0x31;
/// Vector by which cores of this kernel wake each other and request TLB flushes.
const WAKE_VECTOR: u8 = 0x32;

/// Size of a core's stack, in bytes.
pub(crate) const STACK_SIZE: usize = 64 << 10;
/// Maximum number of cores of a node.
const CORES_MAX: usize = insula_abi::NODE_CPUS_MAX;

static SET_UP: AtomicBool = AtomicBool::new(false);
static UP: AtomicU32 = AtomicU32::new(0);
static APIC_IDS: Once<Vec<u32>> = Once::new();
static STATES: [State; CORES_MAX] = [const { State::new() }; CORES_MAX];
/// The base has rung the doorbell, and no core has serviced it yet.
static DOORBELL_PENDING: AtomicBool = AtomicBool::new(false);
static AREA: Once<DelegationArea> = Once::new();

/// State of a core that other cores read and write.
struct State {
    /// Root of the page table that it uses.
    root: AtomicU64,
    /// Root of a page table that it shall stop using; 0 for none.
    detach_root: AtomicU64,
    /// Number of TLB flushes requested from it, and number done.
    flush_requests: AtomicU64,
    flushes_done: AtomicU64,
    /// It took an interrupt and has not serviced pending work since.
    is_interrupted: AtomicBool,
}

impl State {
    const fn new() -> Self {
        Self {
            root: AtomicU64::new(0),
            detach_root: AtomicU64::new(0),
            flush_requests: AtomicU64::new(0),
            flushes_done: AtomicU64::new(0),
            is_interrupted: AtomicBool::new(false),
        }
    }
}

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

fn state(core: u32) -> &'static State {
    &STATES[core as usize % CORES_MAX]
}

/// Calls `visit` with the index and APIC id of each other core.
fn for_others(mut visit: impl FnMut(u32, u32)) {
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

/// Interrupts a core, so that it services pending work; the calling core does so before it next
/// enters a program.
pub(crate) fn interrupt(core: u32) {
    if let Some(&apic_id) = APIC_IDS.get().and_then(|ids| ids.get(core as usize)) {
        apic::send_ipi(apic_id, WAKE_VECTOR);
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

/// Has all other cores service pending work.
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
    SET_UP.store(true, Ordering::Relaxed);
}

/// Counts the calling core as running.
pub(crate) fn mark_up() {
    UP.fetch_add(1, Ordering::AcqRel);
}

/// Lets the base start processes from now on.
pub(crate) fn accept_processes(area: DelegationArea) {
    AREA.call_once(|| area);
    area.announce(doorbell());
    DOORBELL_PENDING.store(true, Ordering::Release);
}

/// Returns the doorbell of the calling core.
fn doorbell() -> u64 {
    let apic_id = u64::from(per_core::current().apic_id);
    DOORBELL_VALID | apic_id << DOORBELL_APIC_SHIFT | u64::from(DOORBELL_VECTOR)
}

/// Switches this core to a page table.
#[allow(unsafe_code, reason = "page tables are loaded by address")]
pub(crate) fn switch_page_table(root: PhysAddr) {
    let state = state(number());
    let last = state.root.swap(root.0, Ordering::SeqCst);
    if last == root.0 {
        return;
    }
    // SAFETY: all page tables share the kernel's half.
    unsafe { cpu::set_root(root.0) }
    // From the kernel's table no program was entered since the last flush.
    if last != 0 && last != crate::start::kernel_root().0 {
        mitigation::flush_branch_predictors();
    }
}

/// Makes all cores leave a page table that is about to be freed; no thread runs with it any more.
/// Cores that still have it loaded leave it by an IPI, whatever they are doing: another core may be
/// in this function, too, waiting for the table that this one uses.
pub(crate) fn detach_page_table(root: PhysAddr) {
    detach_if_used(root.0);
    for_others(|core, _| {
        let other = state(core);
        let uses = || other.root.load(Ordering::SeqCst) == root.0;
        // The request must not stay either: the frame may become the root of another table.
        let is_requested = || other.detach_root.load(Ordering::SeqCst) == root.0;
        while uses() || is_requested() {
            if uses() {
                other.detach_root.store(root.0, Ordering::SeqCst);
            }
            wake(core);
            for _ in 0..1000 {
                cpu::poll_interrupts();
                cpu::relax();
            }
        }
    });
}

fn detach_if_used(root: u64) {
    if state(number()).root.load(Ordering::Relaxed) == root {
        switch_page_table(crate::start::kernel_root());
    }
}

/// Flushes a page table's translations from the TLBs of all cores that use it.
pub(crate) fn tlb_shootdown(root: PhysAddr) {
    // The caller has changed the table. A core not found to use it here sees the change: before it
    // loads CR3 it stores the root by an atomic exchange.
    fence(Ordering::SeqCst);
    let own = state(number());
    if own.root.load(Ordering::Relaxed) == root.0 {
        flush_tlb(root.0);
    }
    for_others(|core, apic_id| {
        let other = state(core);
        if other.root.load(Ordering::SeqCst) != root.0 {
            return;
        }
        let wanted = other.flush_requests.fetch_add(1, Ordering::SeqCst) + 1;
        apic::send_ipi(apic_id, WAKE_VECTOR);
        while other.flushes_done.load(Ordering::SeqCst) < wanted {
            cpu::poll_interrupts();
            cpu::relax();
        }
    });
}

#[allow(unsafe_code, reason = "page tables are loaded by address")]
fn flush_tlb(root: u64) {
    // SAFETY: it is the table in use.
    unsafe { cpu::set_root(root) }
}

/// Handles requests of other cores.
fn handle_wake() {
    let own = state(number());
    let detached = own.detach_root.swap(0, Ordering::SeqCst);
    if detached != 0 {
        detach_if_used(detached);
    }
    let wanted = own.flush_requests.load(Ordering::SeqCst);
    if own.flushes_done.load(Ordering::Relaxed) < wanted {
        flush_tlb(cpu::root());
        own.flushes_done.store(wanted, Ordering::SeqCst);
    }
}

/// Whether the calling core took an interrupt and has not serviced pending work since.
fn is_interrupted() -> bool {
    state(number()).is_interrupted.load(Ordering::Relaxed)
}

/// Has the calling core service pending work before it next enters a program or sleeps.
fn mark_interrupted() {
    state(number())
        .is_interrupted
        .store(true, Ordering::Relaxed);
}

/// Clears that: the calling core is about to service pending work.
fn ack_interrupts() {
    state(number())
        .is_interrupted
        .store(false, Ordering::Relaxed);
}

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
        DOORBELL_VECTOR => DOORBELL_PENDING.store(true, Ordering::Release),
        WAKE_VECTOR => handle_wake(),
        power::BUTTON_VECTOR => power::off("the power button was pressed"),
        _ => {}
    }
}
