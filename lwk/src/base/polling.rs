//! When a core polls what waits for the base.
//!
//! No wakers are needed: the base rings the core for the threads whose syscall slots have its
//! doorbell, a future that waits for a time notes it, and who ends what others wait for wakes all
//! cores ([`poll_all`]).

use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::task::Poll;

use crate::hw::clock;
use crate::hw::cores::{CORES_MAX, mark_interrupted, number, wake_all};

/// Doorbell by which the base wakes each core for what waits there; 0 while it is awake.
static DOORBELLS: [AtomicU64; CORES_MAX] = [const { AtomicU64::new(0) }; CORES_MAX];
/// Time at which each core polls again without being woken, in ns since boot.
static POLL_AT_NS: [AtomicU64; CORES_MAX] = [const { AtomicU64::new(NEVER) }; CORES_MAX];
const NEVER: u64 = u64::MAX;
/// Whether a reply has arrived on each core since it last checked.
static HAS_REPLIES: [AtomicBool; CORES_MAX] = [const { AtomicBool::new(false) }; CORES_MAX];

fn armed() -> &'static AtomicU64 {
    &DOORBELLS[number() as usize % CORES_MAX]
}

fn poll_at() -> &'static AtomicU64 {
    &POLL_AT_NS[number() as usize % CORES_MAX]
}

fn has_replies() -> &'static AtomicBool {
    &HAS_REPLIES[number() as usize % CORES_MAX]
}

/// Notes that a reply has arrived on this core.
pub(crate) fn note_reply() {
    has_replies().store(true, Ordering::Relaxed);
}

/// Whether a reply has arrived on this core since the last call.
pub(crate) fn take_replies() -> bool {
    has_replies().swap(false, Ordering::Relaxed)
}

/// Returns the doorbell that the slots of this core's threads are to have; 0 while it is awake.
pub(crate) fn armed_doorbell() -> u64 {
    armed().load(Ordering::Relaxed)
}

/// Sets that doorbell. The next poll puts it into the slots.
pub(crate) fn arm_doorbell(doorbell: u64) {
    armed().store(doorbell, Ordering::Relaxed);
}

/// Has this core poll what waits there after a time, in ns. For futures, each time that they are
/// polled.
pub(crate) fn poll_after(ns: u64) {
    poll_at().fetch_min(clock::now_ns().saturating_add(ns), Ordering::Relaxed);
}

/// Returns the time at which this core polls again without being woken.
pub(crate) fn next_poll_ns() -> Option<u64> {
    match poll_at().load(Ordering::Relaxed) {
        NEVER => None,
        at_ns => Some(at_ns),
    }
}

/// Waits until a time, in ns since boot.
pub(crate) async fn sleep_until(end_ns: u64) {
    poll_fn(|_| match end_ns.checked_sub(clock::now_ns()) {
        None | Some(0) => Poll::Ready(()),
        Some(left_ns) => {
            poll_after(left_ns);
            Poll::Pending
        }
    })
    .await;
}

/// Has all cores, the calling one included, poll what waits there.
pub(crate) fn poll_all() {
    mark_interrupted();
    wake_all();
}

/// Forgets when this core was to poll again: it is about to.
pub(crate) fn begin_poll() {
    poll_at().store(NEVER, Ordering::Relaxed);
}
