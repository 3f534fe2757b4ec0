//! The words by which each core lets the base take back the pages of base mappings, and tells it for how long it
//! idled: `struct insula_lwk_core` (insula_lwk.h, "Base mappings").

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use insula_abi::lwk::{COUNTERS_PAGES, Core, PAGE_SIZE};
use spin::Once;

use crate::base::area::{DelegationArea, area};
use crate::hw::cores::{CORES_MAX, doorbell, number};
use crate::hw::{clock, interrupts, tlb};

/// Words of each core, found at its first use.
static WORDS: [Once<CoreWords>; CORES_MAX] = [const { Once::new() }; CORES_MAX];

/// Number of accesses under way on each core: it may have several address spaces locked.
static ACCESSES: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

fn accesses_under_way() -> &'static AtomicU32 {
    &ACCESSES[number() as usize % CORES_MAX]
}

/// Words of a core.
#[derive(Clone, Copy, Debug)]
struct CoreWords {
    flush_requests: &'static AtomicU64,
    running: &'static AtomicU64,
    accesses: &'static AtomicU64,
    flushes_done: &'static AtomicU64,
    idle_ticks: &'static AtomicU64,
}

impl CoreWords {
    /// Returns those of the calling core; `None` without a base.
    fn own() -> Option<&'static Self> {
        let place = &WORDS[number() as usize % CORES_MAX];
        match place.get() {
            Some(words) => Some(words),
            None => area().map(|area| place.call_once(|| Self::find(area))),
        }
    }

    /// Finds those of the calling core, and publishes its doorbell.
    fn find(area: DelegationArea) -> Self {
        const PER_PAGE: u64 = PAGE_SIZE / size_of::<Core>() as u64;
        let core = u64::from(number());
        let page = 1 + u64::from(COUNTERS_PAGES) + core / PER_PAGE;
        let start = (core % PER_PAGE) as usize * size_of::<Core>();
        let word = |offset: usize| area.word(page, start + offset);
        word(offset_of!(Core, doorbell)).store(doorbell(), Ordering::Release);
        interrupts::store_times(word(offset_of!(Core, interrupted_at)));
        word(offset_of!(Core, up_since)).store(clock::stamp(), Ordering::Release);
        Self {
            flush_requests: word(offset_of!(Core, flush_requests)),
            running: word(offset_of!(Core, running)),
            accesses: word(offset_of!(Core, accesses)),
            flushes_done: word(offset_of!(Core, flushes_done)),
            idle_ticks: word(offset_of!(Core, idle_ticks)),
        }
    }
}

/// Tells the base that the calling core idles from now on, until [`end_idle`].
pub(crate) fn begin_idle() {
    set_idle(Core::begun_to_idle);
}

/// Ends what [`begin_idle`] began.
pub(crate) fn end_idle() {
    set_idle(Core::ended_to_idle);
}

fn set_idle(changed: fn(u64, u64) -> u64) {
    if let Some(CoreWords { idle_ticks, .. }) = CoreWords::own() {
        // Nobody else writes it.
        let ticks = idle_ticks.load(Ordering::Relaxed);
        idle_ticks.store(changed(ticks, clock::stamp()), Ordering::Relaxed);
    }
}

/// Tells the base that the calling core enters a program, whose page table it has loaded. Flushes
/// the TLB if the base has taken back pages.
pub(crate) fn enter_program() {
    let Some(words) = CoreWords::own() else {
        return;
    };
    // Either the base sees that this core runs the program, or this core sees its request.
    words.running.swap(tlb::page_table().0, Ordering::SeqCst);
    let requested = words.flush_requests.load(Ordering::SeqCst);
    if words.flushes_done.load(Ordering::Relaxed) != requested {
        tlb::flush_own();
        words.flushes_done.store(requested, Ordering::Release);
    }
}

/// Tells the base that the calling core has left the program.
pub(crate) fn leave_program() {
    if let Some(words) = CoreWords::own() {
        words.running.store(0, Ordering::Release);
    }
}

/// Has the base wait, from now to [`end_access`], before it takes back a page whose entry the
/// calling core reads from now on.
pub(crate) fn begin_access() {
    if accesses_under_way().fetch_add(1, Ordering::Relaxed) == 0 {
        count_access();
    }
    // Either the base sees this, or this core sees that the entry is cleared.
    fence(Ordering::SeqCst);
}

/// Ends what [`begin_access`] began.
pub(crate) fn end_access() {
    if accesses_under_way().fetch_sub(1, Ordering::Relaxed) == 1 {
        count_access();
    }
}

/// Makes the count of accesses odd or even.
fn count_access() {
    if let Some(CoreWords { accesses, .. }) = CoreWords::own() {
        let count = accesses.load(Ordering::Relaxed).wrapping_add(1);
        accesses.store(count, Ordering::Release);
    }
}
