//! The page table that each core uses: switching it, flushing its translations from the TLBs of
//! other cores, and having them leave it.

#![allow(unsafe_code, reason = "page tables are loaded by address")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_bare::{PhysAddr, apic, cpu, mitigation};

use crate::hw::cores::{CORES_MAX, WAKE_VECTOR, for_others, number, wake};
use crate::hw::memory::kernel_table;

static STATES: [State; CORES_MAX] = [const { State::new() }; CORES_MAX];

/// State of a core that other cores read and write.
struct State {
    /// Root of the page table that it uses.
    root: AtomicU64,
    /// Root of a page table that it shall stop using; 0 for none.
    detach_root: AtomicU64,
    /// Number of TLB flushes requested from it, and number done.
    flush_requests: AtomicU64,
    flushes_done: AtomicU64,
}

impl State {
    const fn new() -> Self {
        Self {
            root: AtomicU64::new(0),
            detach_root: AtomicU64::new(0),
            flush_requests: AtomicU64::new(0),
            flushes_done: AtomicU64::new(0),
        }
    }
}

fn state(core: u32) -> &'static State {
    &STATES[core as usize % CORES_MAX]
}

/// Switches this core to a page table.
pub(crate) fn switch_page_table(root: PhysAddr) {
    let state = state(number());
    let last = state.root.swap(root.0, Ordering::SeqCst);
    if last == root.0 {
        return;
    }
    // SAFETY: all page tables share the kernel's half.
    unsafe { cpu::set_root(root.0) }
    // From the kernel's table no program was entered since the last flush.
    if last != 0 && last != kernel_table::kernel_root().0 {
        mitigation::flush_branch_predictors();
    }
}

/// Returns the page table that this core uses.
pub(crate) fn page_table() -> PhysAddr {
    PhysAddr(state(number()).root.load(Ordering::Relaxed))
}

/// Flushes this core's TLB.
pub(crate) fn flush_own() {
    flush_tlb(cpu::root());
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
        switch_page_table(kernel_table::kernel_root());
    }
}

/// Flushes a page table's translations from the TLBs of all cores that use it.
pub(crate) fn shootdown(root: PhysAddr) {
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

fn flush_tlb(root: u64) {
    // SAFETY: it is the table in use.
    unsafe { cpu::set_root(root) }
}

/// Handles requests of other cores.
pub(super) fn handle_requests() {
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
