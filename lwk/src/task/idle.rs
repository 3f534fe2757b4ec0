//! Which cores are idle, and waking one for a ready thread.

use core::sync::atomic::{AtomicU8, Ordering, fence};

use crate::hw::cores::{CORES_MAX, interrupt, up};
use crate::model::scheduling::CoreSet;

/// State of each core.
static STATES: [AtomicU8; CORES_MAX] = [const { AtomicU8::new(SEARCHING) }; CORES_MAX];
/// It searches for work, or was woken to do so.
pub(crate) const SEARCHING: u8 = 0;
/// It runs a thread.
pub(crate) const RUNNING: u8 = 1;
/// It found no work, and searches again only when woken.
pub(crate) const IDLE: u8 = 2;

/// Returns the state of a core: [`SEARCHING`], [`RUNNING`] or [`IDLE`].
pub(crate) fn state(core: u32) -> &'static AtomicU8 {
    &STATES[core as usize % CORES_MAX]
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
pub(crate) fn wake_idle(is_allowed: impl Fn(u32) -> bool) {
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
