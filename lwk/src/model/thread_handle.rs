//! State of a thread that others may access.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::model::scheduling::{AtomicCoreSet, CoreSet, Priority};
use crate::model::served_endpoint::ServedEndpoint;
use crate::model::signals::set::Set;

/// State of a thread that others read and write while it runs or sleeps: pending signal, core,
/// priority, affinity.
#[derive(Debug)]
pub struct ThreadHandle {
    signal_pending: AtomicBool,
    /// Copy of the thread's signal mask, readable without locking the signals.
    pub(super) blocked: AtomicU64,
    /// Core that the thread belongs to.
    pub core: AtomicU32,
    priority: AtomicU32,
    /// Highest real-time priority among waiters for locks that the thread owns; 0 for none.
    boost: AtomicU32,
    cores: AtomicCoreSet,
    /// CPU time, in ticks of the time stamp counter.
    pub cpu_ticks: AtomicU64,
    /// Which endpoint it serves.
    pub serves: ServedEndpoint,
}

impl ThreadHandle {
    pub(super) fn new(
        blocked: Set,
        core: u32,
        (priority, cores): (Priority, CoreSet),
    ) -> Arc<Self> {
        Arc::new(Self {
            signal_pending: AtomicBool::new(false),
            blocked: AtomicU64::new(blocked),
            core: AtomicU32::new(core),
            priority: AtomicU32::new(priority.to_word()),
            boost: AtomicU32::new(0),
            cores: AtomicCoreSet::new(cores),
            cpu_ticks: AtomicU64::new(0),
            serves: ServedEndpoint::default(),
        })
    }

    /// Returns the effective priority, boosted by waiters.
    #[must_use]
    pub fn priority(&self) -> Priority {
        let boost = self.boost.load(Ordering::Relaxed);
        self.base_priority().boosted_to(boost)
    }

    /// Returns the priority without a boost, which is what programs see.
    #[must_use]
    pub fn base_priority(&self) -> Priority {
        Priority::from_word(self.priority.load(Ordering::Relaxed))
    }

    /// Sets the boost; 0 for none. Returns whether it has changed.
    pub fn set_boost(&self, realtime: u32) -> bool {
        self.boost.swap(realtime, Ordering::Relaxed) != realtime
    }

    /// Sets the priority without a boost.
    pub fn set_priority(&self, priority: Priority) {
        self.priority.store(priority.to_word(), Ordering::Relaxed);
    }

    /// Returns the core affinity.
    #[must_use]
    pub fn cores(&self) -> CoreSet {
        self.cores.load()
    }

    /// Whether the affinity allows a core.
    #[must_use]
    pub fn may_run_on(&self, core: u32) -> bool {
        self.cores.holds(core)
    }

    /// Sets the core affinity. The thread migrates as soon as its core schedules.
    pub fn set_cores(&self, cores: CoreSet) {
        self.cores.store(cores);
    }

    /// Returns the signal mask.
    #[must_use]
    pub fn blocked(&self) -> Set {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Whether a signal may be pending for the thread.
    #[must_use]
    pub fn is_signal_pending(&self) -> bool {
        self.signal_pending.load(Ordering::SeqCst)
    }

    pub(super) fn set_signal_pending(&self, whether: bool) {
        self.signal_pending.store(whether, Ordering::SeqCst);
    }
}
