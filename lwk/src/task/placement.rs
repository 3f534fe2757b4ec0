//! Which core a thread belongs to.

use core::sync::atomic::Ordering;

use crate::hw::cores::up;
use crate::task::load::{least_loaded, load};
use crate::task::thread::Thread;

/// Removes a thread from its core's count.
pub(crate) fn detach(thread: &Thread) {
    load(thread.core).fetch_sub(1, Ordering::Relaxed);
}

/// Assigns a thread to a core that counts it already.
pub(crate) fn attach(thread: &mut Thread, core: u32) {
    thread.core = core;
    thread.handle.core.store(core, Ordering::Relaxed);
}

/// Moves a thread that may not run on its core to an allowed one, if there is one. Returns whether
/// it did.
pub(crate) fn migrate(thread: &mut Thread) -> bool {
    if thread.handle.may_run_on(thread.core) {
        return false;
    }
    let allowed = thread.handle.cores();
    if allowed.below(up()).is_empty() {
        return false;
    }
    detach(thread);
    attach(thread, least_loaded(&allowed));
    true
}
