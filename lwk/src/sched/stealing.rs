//! Work stealing: an idle core takes ready threads from another.
//!
//! A thread stays on its core, whose caches are warm, as long as its affinity allows it. It moves
//! when it is ready, its core runs another thread, and an idle core steals it. No core pushes
//! threads, and a core that computes is not interrupted: when a thread is queued on a busy core, an
//! idle one is woken and searches itself.

use alloc::boxed::Box;
use core::sync::atomic::{Ordering, fence};

use crate::hw::cores::{number, up};
use crate::task::idle::{IDLE, RUNNING, SEARCHING, state, wake_idle};
use crate::task::load::load;
use crate::task::placement::{attach, detach};
use crate::task::run_queue;
use crate::task::thread::Thread;

/// Marks the calling core as running a thread. Idle cores may steal its other ready threads.
pub(super) fn set_running() {
    state(number()).store(RUNNING, Ordering::SeqCst);
    // Before the queue is read: another core queues a thread, then reads the state.
    fence(Ordering::SeqCst);
    let own = number();
    wake_idle(|core| run_queue::has_ready_for(own, 0, core));
}

/// Marks the calling core as searching.
pub(super) fn set_searching() {
    state(number()).store(SEARCHING, Ordering::SeqCst);
}

/// Marks the calling core as idle. Returns whether there is still no work.
pub(super) fn set_idle() -> bool {
    state(number()).store(IDLE, Ordering::SeqCst);
    // Before the last search: another core queues a thread, then reads the state.
    fence(Ordering::SeqCst);
    !others().any(has_stealable)
}

/// Returns the other cores, from the next one on.
fn others() -> impl Iterator<Item = u32> {
    let (own, up) = (number(), up());
    (1..up).map(move |distance| (own + distance) % up)
}

/// Whether a core has a ready thread that the calling core may steal.
fn has_stealable(core: u32) -> bool {
    run_queue::has_ready_for(core, reserved(core), number())
}

/// Number of ready threads that the core itself will run next.
fn reserved(core: u32) -> usize {
    usize::from(state(core).load(Ordering::SeqCst) != RUNNING)
}

/// Steals a ready thread from another core.
pub(super) fn steal() -> Option<Box<Thread>> {
    let own = number();
    let mut thread =
        others().find_map(|core| run_queue::take_ready_for(core, reserved(core), own))?;
    detach(&thread);
    load(own).fetch_add(1, Ordering::Relaxed);
    attach(&mut thread, own);
    Some(thread)
}
