//! The earliest timeout of what waits on each core.

use core::sync::atomic::{AtomicU64, Ordering};

const CORES: usize = insula_abi::NODE_CPUS_MAX;
const NEVER: u64 = u64::MAX;

/// The earliest timeout of each core's waiters, in ns since boot, which may have been woken since.
/// A waiter is added with its list locked; who looks for the earliest one first forgets it, then looks at
/// the lists, or has them locked throughout: so none is missed.
#[derive(Debug)]
pub(super) struct CoreDeadlines([AtomicU64; CORES]);

impl CoreDeadlines {
    /// Creates it without waiters.
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(NEVER) }; CORES])
    }

    fn of(&self, core: u32) -> &AtomicU64 {
        &self.0[core as usize % CORES]
    }

    /// Adds a waiter.
    pub(super) fn add(&self, core: u32, deadline_ns: Option<u64>) {
        if let Some(deadline_ns) = deadline_ns {
            self.of(core).fetch_min(deadline_ns, Ordering::AcqRel);
        }
    }

    /// Sets what is left after waiters have been woken.
    pub(super) fn set(&self, core: u32, next_ns: Option<u64>) {
        self.of(core)
            .store(next_ns.unwrap_or(NEVER), Ordering::Release);
    }

    /// Returns a core's.
    pub(super) fn next(&self, core: u32) -> Option<u64> {
        match self.of(core).load(Ordering::Acquire) {
            NEVER => None,
            deadline_ns => Some(deadline_ns),
        }
    }
}
