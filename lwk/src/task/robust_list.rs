//! Robust futexes: released when their owner exits, so that waiters find out.
//!
//! The waiters of those in memory of the base are the base's. When a whole process exits, the base
//! releases them (insula_lwk.h, "Robust futexes"); when a thread exits alone or executes a program,
//! this kernel does, by calls.
//!
//! Source: Documentation/locking/robust-futex-ABI.rst of Linux.

use crate::model::errno::Errno;
use crate::model::futex::{OWNER_DIED, TID_MASK, WAITERS};
use crate::model::number::FUTEX;
use crate::task::address_space::AddressSpace;
use crate::task::address_space::base_access::take_missing;
use crate::task::futex;
use crate::task::thread::Thread;

/// Maximum number of entries followed: the list is the program's, and may be cyclic.
const ENTRIES_MAX: usize = 2048;
/// Bit of an entry's address that marks a PI futex.
const IS_PI: u64 = 1;

/// The list of a thread, as its head describes it.
#[derive(Clone, Copy, Debug)]
struct List {
    /// Address of the head, which ends the list.
    head: u64,
    /// First entry.
    first: u64,
    /// Offset of the futex in an entry.
    offset: u64,
    /// The entry whose lock operation is pending; 0 for none.
    pending: u64,
}

impl List {
    fn of(thread: &Thread) -> Result<Option<Self>, Errno> {
        let (head, _) = thread.robust_list;
        if head == 0 {
            return Ok(None);
        }
        let mut space = thread.process.space();
        Ok(Some(Self {
            head,
            first: word_at(&mut space, head)?,
            offset: word_at(&mut space, head.wrapping_add(8))?,
            pending: word_at(&mut space, head.wrapping_add(16))?,
        }))
    }

    fn is_pending(&self, entry: u64) -> bool {
        entry & !IS_PI == self.pending & !IS_PI
    }

    /// Returns the address of an entry's futex.
    fn futex(&self, entry: u64) -> Result<u64, Errno> {
        let address = (entry & !IS_PI).wrapping_add(self.offset);
        match address.is_multiple_of(4) {
            true => Ok(address),
            false => Err(Errno::EINVAL),
        }
    }
}

fn word_at(space: &mut AddressSpace, address: u64) -> Result<u64, Errno> {
    let mut bytes = [0; 8];
    space.read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Futexes that the base has to release, or whose entries are in memory that it has to provide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BasePart {
    /// Entry of the first one.
    pub(crate) first: Option<u64>,
    /// Offset of the futex in an entry.
    pub(crate) offset: u64,
    /// The entry whose lock operation is pending, if that is the base's; else 0.
    pub(crate) pending: u64,
}

impl BasePart {
    fn is_empty(&self) -> bool {
        self.first.is_none() && self.pending == 0
    }
}

/// Releases the futexes in a thread's list that are in memory of the node, and forgets the list,
/// unless something is left to the base.
pub(super) fn release(thread: &mut Thread) -> Option<BasePart> {
    let mut part = BasePart::default();
    if let Ok(Some(list)) = List::of(thread) {
        part.offset = list.offset;
        // Stops at an invalid entry.
        let _ = walk(thread, &list, &mut part);
    }
    if part.is_empty() {
        thread.robust_list = (0, 0);
        return None;
    }
    Some(part)
}

fn walk(thread: &Thread, list: &List, part: &mut BasePart) -> Result<(), Errno> {
    let mut entry = list.first;
    for _ in 0..ENTRIES_MAX {
        if entry & !IS_PI == list.head {
            break;
        }
        let next = word_at(&mut thread.process.space(), entry & !IS_PI);
        let is_bases = next == Err(Errno::EBASEPAGE)
            || !list.is_pending(entry) && !release_one(thread, list, entry)?;
        if is_bases {
            part.first.get_or_insert(entry);
        }
        if next == Err(Errno::EBASEPAGE) {
            break;
        }
        entry = next?;
    }
    if list.pending != 0 && !release_one(thread, list, list.pending)? {
        part.pending = list.pending;
    }
    Ok(())
}

/// Releases a futex, unless it is the base's. Returns whether it was not.
fn release_one(thread: &Thread, list: &List, entry: u64) -> Result<bool, Errno> {
    let address = list.futex(entry)?;
    if thread.process.space().is_base_shared(address) {
        return Ok(false);
    }
    let released = match entry & IS_PI {
        0 => mark_owner_died(thread, list, entry).map(|has_waiters| {
            if has_waiters {
                futex::wake(thread.process.futex_at(address), 1, u32::MAX);
            }
        }),
        _ => hand_off(thread, address),
    };
    match released {
        Err(Errno::EBASEPAGE) => Ok(false),
        released => released.map(|()| true),
    }
}

/// Sets the owner-died bit of a futex that the thread owns, in place of its id. Returns whether there
/// may be waiters that nobody else wakes: also of one that it has just unlocked.
fn mark_owner_died(thread: &Thread, list: &List, entry: u64) -> Result<bool, Errno> {
    let address = list.futex(entry)?;
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    while word & TID_MASK == thread.id as u32 {
        let found = space.compare_exchange(address, word, word & WAITERS | OWNER_DIED)?;
        if found == word {
            return Ok(word & WAITERS != 0);
        }
        word = found;
    }
    Ok(list.is_pending(entry) && word == 0)
}

/// Hands a PI futex to its first waiter, with the owner-died bit.
fn hand_off(thread: &Thread, address: u64) -> Result<(), Errno> {
    let mut result = Ok(());
    futex::hand_off(thread.process.futex_at(address), |next, has_more| {
        let waiters = if has_more { WAITERS } else { 0 };
        let next = next.map_or(0, |next| next as u32 | waiters);
        let stored = store_if_owner(thread, address, OWNER_DIED | next);
        let is_stored = stored == Ok(true);
        result = stored.map(drop);
        is_stored
    });
    result
}

/// Changes a futex word if the thread owns it. Returns whether it does.
fn store_if_owner(thread: &Thread, address: u64, new: u32) -> Result<bool, Errno> {
    let mut space = thread.process.space();
    let mut word = space.word(address)?;
    while word & TID_MASK == thread.id as u32 {
        let found = space.compare_exchange(address, word, new)?;
        if found == word {
            return Ok(true);
        }
        word = found;
    }
    Ok(false)
}

impl Thread {
    /// Releases the futexes in its list, and forgets the list. Returns false if the proxy exits
    /// meanwhile: the rest is left for [`release`].
    pub(super) async fn release_robust_futexes(&mut self) -> bool {
        if release(self).is_none() {
            return true;
        }
        let is_interrupted = self.release_futexes_of_base().await == Err(Errno::EINTR);
        if !is_interrupted {
            self.robust_list = (0, 0);
        }
        !is_interrupted
    }

    /// The same for those that [`release`] has left.
    async fn release_futexes_of_base(&mut self) -> Result<(), Errno> {
        let Some(list) = self.with_base_pages(List::of).await? else {
            return Ok(());
        };
        let mut entry = list.first;
        for _ in 0..ENTRIES_MAX {
            if entry & !IS_PI == list.head {
                break;
            }
            let next = self
                .with_base_pages(|thread| word_at(&mut thread.process.space(), entry & !IS_PI))
                .await;
            if !list.is_pending(entry) {
                self.release_futex_of_base(&list, entry).await?;
            }
            entry = next?;
        }
        match list.pending {
            0 => Ok(()),
            pending => self.release_futex_of_base(&list, pending).await,
        }
    }

    /// Releases a futex wherever it is. The base itself hands a PI futex on that has waiters, when
    /// the proxy's thread exits.
    async fn release_futex_of_base(&mut self, list: &List, entry: u64) -> Result<(), Errno> {
        /// `FUTEX_WAKE`.
        const WAKE: u64 = 1;
        let address = list.futex(entry)?;
        if !self.process.space().is_base_shared(address) {
            return self
                .with_base_pages(|thread| match release_one(thread, list, entry)? {
                    true => Ok(()),
                    false => Err(Errno::EBASEPAGE),
                })
                .await;
        }
        let has_waiters = self
            .with_base_pages(|thread| mark_owner_died(thread, list, entry))
            .await?;
        if has_waiters && entry & IS_PI == 0 {
            let arguments = [address, WAKE, 1, 0, 0, 0];
            self.remote_syscall_as_kernel(FUTEX, arguments).await?;
        }
        Ok(())
    }

    /// Calls `operation`, again after each page of a base mapping that it lacks has been faulted in.
    pub(crate) async fn with_base_pages<T>(
        &mut self,
        operation: impl Fn(&Self) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        loop {
            match operation(self) {
                Err(Errno::EBASEPAGE) => {}
                result => return result,
            }
            let page = take_missing().ok_or(Errno::EFAULT)?;
            self.fault_in(page.address, page.access).await?;
        }
    }
}
