//! The memory of a program, and which processes have it: one, or more after vfork(2), until each goes
//! its own way. It is freed when nobody has it any more.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use lock_api::ArcMutexGuard;
use spin::lock_api::Mutex;

use super::space::Space;
use crate::cores;
use crate::delegation::ProcessPages;

/// A space that somebody has for himself, for a while.
pub(super) type SpaceGuard = ArcMutexGuard<spin::Mutex<()>, Space>;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A memory.
#[derive(Debug)]
pub struct Memory {
    number: u64,
    space: Arc<Mutex<Space>>,
    /// Whose proxies may have pages of it.
    processes: spin::Mutex<Vec<ProcessPages>>,
}

impl Memory {
    /// That of one process.
    #[must_use]
    pub fn new(space: Space, process: ProcessPages) -> Arc<Self> {
        Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            space: Arc::new(Mutex::new(space)),
            processes: spin::Mutex::new(alloc::vec![process]),
        })
    }

    /// What tells it from all others that there have been.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its space. Whoever has it may wait for this core to take an interrupt.
    pub fn space(&self) -> SpaceGuard {
        cores::wait_for(|| self.try_space())
    }

    /// The same, if nobody has it now.
    pub fn try_space(&self) -> Option<SpaceGuard> {
        self.space.try_lock_arc()
    }

    /// Another process has it, too.
    pub fn join(&self, process: ProcessPages) {
        self.processes.lock().push(process);
    }

    /// Whether several processes have it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.processes.lock().len() > 1
    }

    /// Whether the base may have anything of a range, for any of its processes.
    #[must_use]
    pub fn is_reached(&self, start: u64, end: u64) -> bool {
        let processes = self.processes.lock();
        processes.iter().any(|pages| pages.is_reached(start, end))
    }

    /// A process has it no more: none of its threads runs with it, and of the base's its proxy reaches
    /// nothing of it. The last one frees it.
    pub fn leave(&self, process: &ProcessPages) {
        let is_last = {
            let mut processes = self.processes.lock();
            processes.retain(|one| one.number() != process.number());
            processes.is_empty()
        };
        if is_last {
            let root = self.space().root();
            // Without any lock: whoever still uses the page table may be waiting for one.
            cores::leave_space(root);
            self.space().free();
        }
    }
}
