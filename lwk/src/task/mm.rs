//! Memory of a program, and the processes that share it: one, or more after vfork(2). It is freed
//! when no process uses it any more.
//!
//! Two locks protect the address space. The *change lock* is held by who changes VMAs or copies the
//! space, also while the base invalidates a range: only futures wait for it. The *spin lock* is
//! held for moments, by each step of a change, and by page faults, the base's remote faults and the
//! kernel's own accesses, which so go on while a change waits for the base.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use insula_abi::lwk::base_state;
use lock_api::ArcMutexGuard;
use spin::lock_api::Mutex;

use crate::base::polling;
use crate::base::process_pages::ProcessPages;
use crate::hw::{cores, tlb};
use crate::model::change_lock::ChangeLock;
use crate::model::errno::Errno;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::quarantine::Pinned;
use crate::task::address_space::stop::{Invalidation, Stop};
use crate::task::spin_guard::SpinGuard;

/// A locked address space. Once it is dropped the base may take back pages that the kernel accessed.
pub struct AddressSpaceGuard(SpinGuard<ArcMutexGuard<spin::Mutex<()>, AddressSpace>>);

impl fmt::Debug for AddressSpaceGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AddressSpaceGuard")
    }
}

impl Deref for AddressSpaceGuard {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        &self.0
    }
}

impl DerefMut for AddressSpaceGuard {
    fn deref_mut(&mut self) -> &mut AddressSpace {
        &mut self.0
    }
}

impl Drop for AddressSpaceGuard {
    fn drop(&mut self) {
        self.0.end_base_access();
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Memory of a program.
#[derive(Debug)]
pub struct Mm {
    id: u64,
    space: Arc<Mutex<AddressSpace>>,
    change_lock: ChangeLock,
    is_shared_for_good: AtomicBool,
    /// Processes whose proxies may map its pages.
    sharers: spin::Mutex<Vec<Sharer>>,
}

/// A process that has a memory.
#[derive(Clone, Copy, Debug)]
struct Sharer {
    pages: ProcessPages,
    /// It exits, and will leave the memory.
    is_leaving: bool,
}

impl Sharer {
    fn new(pages: ProcessPages) -> Self {
        Self {
            pages,
            is_leaving: false,
        }
    }
}

/// Result of a step of a change.
#[derive(Debug)]
pub enum Step<T> {
    /// The change is done, or has failed.
    Done(Result<T, Errno>),
    /// The base has to invalidate a range first.
    Invalidate(Invalidation),
    /// The proxy has to map the mirror first in place of a base mapping, from the first address to
    /// before the second.
    EndBaseMapping(u64, u64),
    /// The base has to look up the pages first that it awaits in a range.
    Await(u64, u64),
}

/// The change lock, held.
#[derive(Debug)]
pub struct ChangeGuard {
    mm: Arc<Mm>,
}

impl ChangeGuard {
    /// Returns the memory.
    #[must_use]
    pub fn mm(&self) -> &Arc<Mm> {
        &self.mm
    }

    /// Starts a change, or starts it again after what it stopped for, unless that was an
    /// invalidation. `operation` is called again after each invalidation that it asks for.
    pub fn begin<T>(
        &self,
        operation: &mut impl FnMut(&mut AddressSpace) -> Result<T, Stop>,
    ) -> Step<T> {
        self.mm.step(&mut self.mm.space(), operation)
    }

    /// Continues a change after an invalidation.
    pub fn resume<T>(
        &self,
        (range, pinned): (&Invalidation, &Pinned),
        operation: &mut impl FnMut(&mut AddressSpace) -> Result<T, Stop>,
    ) -> Step<T> {
        // What was unmapped is free, and its range taken again, before another core can fault in
        // between.
        let mut space = self.mm.space();
        space.finish_invalidation(range, pinned);
        self.mm.step(&mut space, operation)
    }
}

impl Drop for ChangeGuard {
    fn drop(&mut self) {
        if self.mm.change_lock.unlock() {
            polling::poll_all();
        }
    }
}

impl Mm {
    /// Creates it for one process.
    #[must_use]
    pub fn new(space: AddressSpace, process: ProcessPages) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            space: Arc::new(Mutex::new(space)),
            change_lock: ChangeLock::default(),
            is_shared_for_good: AtomicBool::new(false),
            sharers: spin::Mutex::new(alloc::vec![Sharer::new(process)]),
        })
    }

    /// Returns its id, which is never reused.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Locks the address space for a moment. The owner of the lock may wait for this core to handle
    /// an IPI.
    pub fn space(&self) -> AddressSpaceGuard {
        let guard = cores::wait_for(|| self.space.try_lock_arc());
        AddressSpaceGuard(SpinGuard::new(guard))
    }

    /// Takes the change lock, if nobody holds it or waits for it.
    pub fn try_change(self: &Arc<Self>) -> Option<ChangeGuard> {
        self.change_lock.try_lock().then(|| ChangeGuard {
            mm: Arc::clone(self),
        })
    }

    /// Takes the change lock.
    pub async fn change(self: &Arc<Self>) -> ChangeGuard {
        self.change_lock.lock().await;
        ChangeGuard {
            mm: Arc::clone(self),
        }
    }

    /// Calls `operation` until it is done, or needs the base: to look up a page, or to invalidate
    /// something that it may have mapped.
    fn step<T>(
        &self,
        space: &mut AddressSpace,
        operation: &mut impl FnMut(&mut AddressSpace) -> Result<T, Stop>,
    ) -> Step<T> {
        loop {
            let range = match operation(space) {
                Ok(done) => return Step::Done(Ok(done)),
                Err(Stop::Error(error)) => return Step::Done(Err(error)),
                Err(Stop::Awaited(start, end)) => return Step::Await(start, end),
                Err(Stop::BaseMapping(start, end)) => return Step::EndBaseMapping(start, end),
                Err(Stop::Invalidate(range)) => range,
            };
            if range.force || self.may_be_mapped(range.start, range.end) {
                return Step::Invalidate(range);
            }
            space.finish_invalidation(&range, &Pinned::NONE);
        }
    }

    /// Adds a process that shares it: for good, or until the process that forked it goes on.
    pub fn add_sharer(&self, process: ProcessPages, is_for_good: bool) {
        if is_for_good {
            self.is_shared_for_good.store(true, Ordering::Release);
        }
        self.sharers.lock().push(Sharer::new(process));
    }

    /// Whether a process shares it, or has shared it, other than by vfork(2).
    #[must_use]
    pub fn is_shared_for_good(&self) -> bool {
        self.is_shared_for_good.load(Ordering::Acquire)
    }

    /// Returns the number of the process that has had it longest: if others share it, what is in one
    /// proxy only is in this one's.
    #[must_use]
    pub fn owner(&self) -> u64 {
        let sharers = self.sharers.lock();
        sharers.first().map_or(0, |sharer| sharer.pages.number())
    }

    /// Notes that a process exits.
    pub fn note_leaving(&self, process: &ProcessPages) {
        let mut sharers = self.sharers.lock();
        let its = sharers.iter_mut();
        its.filter(|sharer| sharer.pages.number() == process.number())
            .for_each(|sharer| sharer.is_leaving = true);
    }

    /// Whether a process that shares it exits, and is about to leave it.
    #[must_use]
    pub fn is_any_leaving(&self) -> bool {
        let sharers = self.sharers.lock();
        sharers
            .iter()
            .any(|sharer| sharer.is_leaving || sharer.pages.base_state() >= base_state::EXITED)
    }

    /// Whether proxies of several processes have it mapped. One that has exited may still have I/O
    /// under way in it.
    #[must_use]
    pub fn is_mapped_by_several(&self) -> bool {
        let sharers = self.sharers.lock();
        let is_mapped = |sharer: &&Sharer| sharer.pages.base_state() < base_state::UNMAPPED;
        sharers.iter().filter(is_mapped).count() > 1
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
        let may_map = |sharer: &Sharer| sharer.pages.may_be_mapped(start, end);
        sharers.iter().any(may_map)
    }

    /// Removes a process: none of its threads runs, and its proxy has nothing mapped. The last one
    /// frees the memory.
    pub fn remove_sharer(&self, process: &ProcessPages) {
        let is_last = {
            let mut sharers = self.sharers.lock();
            sharers.retain(|one| one.pages.number() != process.number());
            sharers.is_empty()
        };
        if is_last {
            let root = self.space().root();
            // Without a lock: a core that still uses the page table may be waiting for one.
            tlb::detach_page_table(root);
            self.space().free();
        }
    }
}
