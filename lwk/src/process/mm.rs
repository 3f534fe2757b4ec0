//! Memory of a program, and the processes that share it: one, or more after vfork(2). It is freed
//! when no process uses it any more.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use lock_api::ArcMutexGuard;
use spin::lock_api::Mutex;

use super::address_space::AddressSpace;
use crate::cores;
use crate::delegation::ProcessPages;

/// A locked address space.
pub(super) type AddressSpaceGuard = ArcMutexGuard<spin::Mutex<()>, AddressSpace>;

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Memory of a program.
#[derive(Debug)]
pub struct Mm {
    id: u64,
    space: Arc<Mutex<AddressSpace>>,
    /// Processes whose proxies may map its pages.
    sharers: spin::Mutex<Vec<ProcessPages>>,
}

impl Mm {
    /// Creates it for one process.
    #[must_use]
    pub fn new(space: AddressSpace, process: ProcessPages) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            space: Arc::new(Mutex::new(space)),
            sharers: spin::Mutex::new(alloc::vec![process]),
        })
    }

    /// Returns its id, which is never reused.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Locks the address space. The owner of the lock may wait for this core to handle an IPI.
    pub fn space(&self) -> AddressSpaceGuard {
        cores::wait_for(|| self.try_space())
    }

    /// Locks the address space, if it is free.
    pub fn try_space(&self) -> Option<AddressSpaceGuard> {
        self.space.try_lock_arc()
    }

    /// Adds a process that shares it.
    pub fn add_sharer(&self, process: ProcessPages) {
        self.sharers.lock().push(process);
    }

    /// Whether several processes share it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.sharers.lock().len() > 1
    }

    /// Whether the base may have mapped any page of a range, for any of its processes.
    #[must_use]
    pub fn may_be_mapped(&self, start: u64, end: u64) -> bool {
        let sharers = self.sharers.lock();
        sharers.iter().any(|pages| pages.may_be_mapped(start, end))
    }

    /// Removes a process: none of its threads runs, and its proxy has nothing mapped. The last one
    /// frees the memory.
    pub fn remove_sharer(&self, process: &ProcessPages) {
        let is_last = {
            let mut sharers = self.sharers.lock();
            sharers.retain(|one| one.number() != process.number());
            sharers.is_empty()
        };
        if is_last {
            let root = self.space().root();
            // Without a lock: a core that still uses the page table may be waiting for one.
            cores::detach_page_table(root);
            self.space().free();
        }
    }
}
