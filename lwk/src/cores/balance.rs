//! Which core a thread belongs to.
//!
//! A thread stays on its core, whose caches know it, as long as it may run there. It changes when it is
//! ready, its core runs another, and a third has nothing to do: that one fetches it. Nobody pushes, and
//! a core that computes is not asked; who puts a thread into the queue of a core that is taken wakes
//! one that is idle, which looks for itself.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

use super::{CORES_MAX, interrupt, number, schedule, up};
use crate::process::Thread;
use crate::process::scheduling::CoreSet;

/// Threads that belong to each core.
static LOAD: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];
/// What each core does: one of the following.
static STATES: [AtomicU8; CORES_MAX] = [const { AtomicU8::new(LOOKS) }; CORES_MAX];
/// It looks for what to do, or has been told to.
const LOOKS: u8 = 0;
/// It runs a thread.
const RUNS: u8 = 1;
/// It has found nothing, and looks again only when it is told to.
const IDLE: u8 = 2;

fn load(core: u32) -> &'static AtomicU32 {
    &LOAD[core as usize % CORES_MAX]
}

fn state(core: u32) -> &'static AtomicU8 {
    &STATES[core as usize % CORES_MAX]
}

/// The core with the fewest threads, of those in a set, if any of it runs. One more is counted there.
pub(crate) fn least_loaded(allowed: &CoreSet) -> u32 {
    let cores = (0..up()).filter(|&core| allowed.holds(core));
    let least = cores.min_by_key(|&core| load(core).load(Ordering::Relaxed));
    let core = least.unwrap_or(0);
    load(core).fetch_add(1, Ordering::Relaxed);
    core
}

/// A thread belongs to its core no more.
pub(super) fn leaves(thread: &Thread) {
    load(thread.core).fetch_sub(1, Ordering::Relaxed);
}

/// A thread that has left its core belongs to this one, where it is counted already.
fn joins(thread: &mut Thread, core: u32) {
    thread.core = core;
    thread.notice.core.store(core, Ordering::Relaxed);
}

/// Moves a thread that may not run on its core, if there is one for it; whether it has been.
pub(super) fn moves(thread: &mut Thread) -> bool {
    let allowed = thread.notice.cores();
    if allowed.holds(thread.core) || allowed.below(up()).is_empty() {
        return false;
    }
    leaves(thread);
    joins(thread, least_loaded(&allowed));
    true
}

/// The calling core is about to run a thread. What else is ready there others may fetch.
pub(super) fn begin_to_run() {
    state(number()).store(RUNS, Ordering::SeqCst);
    fence(Ordering::SeqCst); // before a look at the queue: who puts a thread there looks at the state
    let own = number();
    wake_idle(|core| schedule::is_ready_for(own, 0, core));
}

/// The calling core looks for what to do.
pub(super) fn look() {
    state(number()).store(LOOKS, Ordering::SeqCst);
}

/// The calling core has found nothing to do; whether that is still so.
pub(super) fn become_idle() -> bool {
    state(number()).store(IDLE, Ordering::SeqCst);
    fence(Ordering::SeqCst); // before a last look: who puts a thread into a queue looks at the state
    !others().any(is_left_over)
}

/// A thread that may run on these cores is in the queue of this one: one that is idle is to fetch it
/// if this one is taken.
pub(super) fn offer(core: u32, allowed: &CoreSet) {
    fence(Ordering::SeqCst); // the queue, before a look at the state
    if state(core).load(Ordering::SeqCst) == RUNS {
        wake_idle(|core| allowed.holds(core));
    }
}

/// Has a core look that is idle, of those that may do something.
fn wake_idle(may: impl Fn(u32) -> bool) {
    let is_idle = |&core: &u32| state(core).load(Ordering::SeqCst) == IDLE;
    let mut idle = (0..up()).filter(is_idle).filter(|&core| may(core));
    let found = idle.find(|&core| {
        let told = state(core).compare_exchange(IDLE, LOOKS, Ordering::SeqCst, Ordering::SeqCst);
        told.is_ok()
    });
    if let Some(core) = found {
        interrupt(core);
    }
}

/// The other cores, from the next one on.
fn others() -> impl Iterator<Item = u32> {
    let (own, up) = (number(), up());
    (1..up).map(move |distance| (own + distance) % up)
}

/// Whether more is ready at a core than it runs next, for the calling one as well.
fn is_left_over(core: u32) -> bool {
    schedule::is_ready_for(core, spare(core), number())
}

/// How many threads are a core's to run: the first, unless it runs another.
fn spare(core: u32) -> usize {
    usize::from(state(core).load(Ordering::SeqCst) != RUNS)
}

/// Fetches a thread that is ready, and another core does not come to.
pub(super) fn fetch() -> Option<Box<Thread>> {
    let own = number();
    let mut thread = others().find_map(|core| schedule::take_for(core, spare(core), own))?;
    leaves(&thread);
    load(own).fetch_add(1, Ordering::Relaxed);
    joins(&mut thread, own);
    Some(thread)
}
