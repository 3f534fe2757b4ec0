//! Load of each core: the number of its threads.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::hw::cores::{CORES_MAX, up};
use crate::model::scheduling::CoreSet;

/// Number of threads that belong to each core.
static LOAD: [AtomicU32; CORES_MAX] = [const { AtomicU32::new(0) }; CORES_MAX];

/// Returns the number of threads that belong to a core.
pub(crate) fn load(core: u32) -> &'static AtomicU32 {
    &LOAD[core as usize % CORES_MAX]
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
