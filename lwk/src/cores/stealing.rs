//! Work stealing: which core a thread runs on.
//!
//! A thread stays on its core, whose caches are warm, as long as its affinity allows it. It moves
//! when it is ready, its core runs another thread, and an idle core steals it. No core pushes
//! threads, and a core that computes is not interrupted: when a thread is queued on a busy core, an
//! idle one is woken and searches itself.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

use super::{CORES_MAX, interrupt, number, schedule, up};
use crate::process::Thread;
use crate::process::scheduling::CoreSet;

/// Number of threads that belong to each core.
static LOAD: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];
/// State of each core.
static STATES: [AtomicU8; CORES_MAX] = [const { AtomicU8::new(SEARCHING) }; CORES_MAX];
/// It searches for work, or was woken to do so.
const SEARCHING: u8 = 0;
/// It runs a thread.
const RUNNING: u8 = 1;
/// It found no work, and searches again only when woken.
const IDLE: u8 = 2;

fn load(core: u32) -> &'static AtomicU32 {
    &LOAD[core as usize % CORES_MAX]
}

fn state(core: u32) -> &'static AtomicU8 {
    &STATES[core as usize % CORES_MAX]
}

/// Returns the core of a set with the fewest threads, and counts one more there. Core 0 if no core
/// of the set runs.
pub(crate) fn least_loaded(allowed: &CoreSet) -> u32 {
    let cores = (0..up()).filter(|&core| allowed.holds(core));
    let least = cores.min_by_key(|&core| load(core).load(Ordering::Relaxed));
    let core = least.unwrap_or(0);
    load(core).fetch_add(1, Ordering::Relaxed);
    core
}

/// Removes a thread from its core's count.
pub(super) fn detach(thread: &Thread) {
    load(thread.core).fetch_sub(1, Ordering::Relaxed);
}

/// Assigns a thread to a core that counts it already.
fn attach(thread: &mut Thread, core: u32) {
    thread.core = core;
    thread.handle.core.store(core, Ordering::Relaxed);
}

/// Moves a thread that may not run on its core to an allowed one, if there is one. Returns whether
/// it did.
pub(super) fn migrate(thread: &mut Thread) -> bool {
    let allowed = thread.handle.cores();
    if allowed.holds(thread.core) || allowed.below(up()).is_empty() {
        return false;
    }
    detach(thread);
    attach(thread, least_loaded(&allowed));
    true
}

/// Marks the calling core as running a thread. Idle cores may steal its other ready threads.
pub(super) fn set_running() {
    state(number()).store(RUNNING, Ordering::SeqCst);
    // Before the queue is read: another core queues a thread, then reads the state.
    fence(Ordering::SeqCst);
    let own = number();
    wake_idle(|core| schedule::has_ready_for(own, 0, core));
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

/// Wakes an idle core that may steal a thread just queued on `core`, if that core is running
/// another.
pub(super) fn kick_idle(core: u32, allowed: &CoreSet) {
    // The queue is written before the state is read.
    fence(Ordering::SeqCst);
    if state(core).load(Ordering::SeqCst) == RUNNING {
        wake_idle(|core| allowed.holds(core));
    }
}

/// Wakes one idle core among those that `is_allowed` accepts.
fn wake_idle(is_allowed: impl Fn(u32) -> bool) {
    let is_idle = |&core: &u32| state(core).load(Ordering::SeqCst) == IDLE;
    let mut idle = (0..up()).filter(is_idle).filter(|&core| is_allowed(core));
    let found = idle.find(|&core| {
        let claimed =
            state(core).compare_exchange(IDLE, SEARCHING, Ordering::SeqCst, Ordering::SeqCst);
        claimed.is_ok()
    });
    if let Some(core) = found {
        interrupt(core);
    }
}

/// Returns the other cores, from the next one on.
fn others() -> impl Iterator<Item = u32> {
    let (own, up) = (number(), up());
    (1..up).map(move |distance| (own + distance) % up)
}

/// Whether a core has a ready thread that the calling core may steal.
fn has_stealable(core: u32) -> bool {
    schedule::has_ready_for(core, reserved(core), number())
}

/// Number of ready threads that the core itself will run next.
fn reserved(core: u32) -> usize {
    usize::from(state(core).load(Ordering::SeqCst) != RUNNING)
}

/// Steals a ready thread from another core.
pub(super) fn steal() -> Option<Box<Thread>> {
    let own = number();
    let mut thread =
        others().find_map(|core| schedule::take_ready_for(core, reserved(core), own))?;
    detach(&thread);
    load(own).fetch_add(1, Ordering::Relaxed);
    attach(&mut thread, own);
    Some(thread)
}
