//! The words by which each core lets the base take back the pages of base mappings: `struct
//! insula_lwk_core` (insula_lwk.h, "Base mappings").

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::lwk::{COUNTERS_PAGES, Core, PAGE_SIZE};

use crate::base::area::area;
use crate::hw::cores::{doorbell, number};
use crate::hw::tlb;

/// Returns a word of the calling core; `None` without a base.
fn word(offset: usize) -> Option<&'static AtomicU64> {
    const PER_PAGE: u64 = PAGE_SIZE / size_of::<Core>() as u64;
    let core = u64::from(number());
    let page = 1 + u64::from(COUNTERS_PAGES) + core / PER_PAGE;
    let at = (core % PER_PAGE) as usize * size_of::<Core>() + offset;
    Some(area()?.word(page, at))
}

/// Tells the base that the calling core enters a program, whose page table it has loaded. Flushes
/// the TLB if the base has taken back pages.
pub(crate) fn enter_program() {
    let Some(running) = word(offset_of!(Core, running)) else {
        return;
    };
    if let Some(place) = word(offset_of!(Core, doorbell)) {
        place.store(doorbell(), Ordering::Relaxed);
    }
    // Either the base sees that this core runs the program, or this core sees its request.
    running.swap(tlb::page_table().0, Ordering::SeqCst);
    flush_if_requested();
}

/// Tells the base that the calling core has left the program.
pub(crate) fn leave_program() {
    if let Some(running) = word(offset_of!(Core, running)) {
        running.store(0, Ordering::Release);
    }
}

fn flush_if_requested() {
    let requests = word(offset_of!(Core, flush_requests));
    let Some((requests, done)) = requests.zip(word(offset_of!(Core, flushes_done))) else {
        return;
    };
    let requested = requests.load(Ordering::SeqCst);
    if done.load(Ordering::Relaxed) != requested {
        tlb::flush_own();
        done.store(requested, Ordering::Release);
    }
}

/// Has the base wait, from now to [`end_access`], before it takes back a page whose entry the
/// calling core reads from now on.
pub(crate) fn begin_access() {
    count_access();
    // Either the base sees this, or this core sees that the entry is cleared.
    fence(Ordering::SeqCst);
}

/// Ends what [`begin_access`] began.
pub(crate) fn end_access() {
    count_access();
}

fn count_access() {
    if let Some(accesses) = word(offset_of!(Core, accesses)) {
        let count = accesses.load(Ordering::Relaxed).wrapping_add(1);
        accesses.store(count, Ordering::Release);
    }
}
