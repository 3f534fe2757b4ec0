//! Tracking which buffers of a virtqueue are in flight, by polling its rings.
//!
//! A backend uses buffers in any order, and does not publish which ones it has taken. If it is
//! killed, its successor must get each unused buffer exactly once, since a driver treats a buffer
//! that comes back twice as an error. The rings alone do not show which: each only holds as many of
//! the last buffers as it has entries, and an unused one may be older. So the rings are polled
//! while the backend works, often enough that neither wraps between polls. After a late poll only
//! the number of untracked buffers is known; each of them is seen when it comes back, as a used
//! head that was not made available since. Once all have come back, everything is known again.
//!
//! The driver and the backend may write anything to the rings at any time. Here that only leads to
//! a wrong list of heads, each below the queue's size.
//!
//! Source: specification, 2.7 "Split Virtqueues".

use std::sync::atomic::{Ordering, fence};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::device::Virtqueue;
use super::memory::NodeMemory;

#[cfg(test)]
mod tests;

/// Bytes before the entries of a ring: flags and index.
const RING_HEADER: u64 = 4;
/// Offset of the index.
const RING_INDEX: u64 = 2;
/// Bytes of an available ring's entry, a head, and of a used ring's, a head in 32 bits and a
/// length.
const AVAILABLE_ENTRY: u64 = 2;
const USED_ENTRY: u64 = 8;

/// Address, number of entries and entry size of a ring.
#[derive(Clone, Copy, Debug)]
struct Ring {
    start: u64,
    size: u16,
    entry: u64,
}

impl Ring {
    fn index(self, memory: &GuestMemoryMmap<()>) -> u16 {
        let at = GuestAddress(self.start + RING_INDEX);
        // Reading cannot fail: the ring lies in the node's memory.
        memory.load(at, Ordering::Acquire).map_or(0, u16::from_le)
    }

    fn place(self, number: u16) -> GuestAddress {
        let slot = u64::from(number % self.size);
        GuestAddress(self.start + RING_HEADER + slot * self.entry)
    }

    /// The head in an entry, reduced to the queue's size.
    fn head(self, memory: &GuestMemoryMmap<()>, number: u16) -> u16 {
        let head: u16 = memory
            .load(self.place(number), Ordering::Relaxed)
            .map_or(0, u16::from_le);
        head % self.size
    }

    /// The heads of the entries `first..end`; `None` if the ring has wrapped meanwhile.
    fn heads(self, memory: &GuestMemoryMmap<()>, first: u16, end: u16) -> Option<Vec<u16>> {
        let count = end.wrapping_sub(first).min(self.size);
        let numbers = (0..count).map(|number| first.wrapping_add(number));
        let heads = numbers.map(|number| self.head(memory, number)).collect();
        // Order the reads of the entries before the second read of the index.
        fence(Ordering::Acquire);
        let now = self.index(memory).wrapping_sub(first);
        // An entry may be written before its index is published, hence `<`.
        (now < self.size).then_some(heads)
    }
}

/// A tracked virtqueue.
#[derive(Debug)]
pub(super) struct Inflight {
    available: Ring,
    used: Ring,
    /// Index up to which each ring has been read.
    seen_available: u16,
    seen_used: u16,
    /// Heads that are available and unused, the oldest first where the order is known.
    known: Vec<u16>,
    /// Number of buffers in flight whose heads are not known.
    unknown: u16,
}

/// Why no other backend can resume the virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unrecoverable {
    /// Not all of this number of buffers in flight are known.
    #[error("not all of its {0} requests in flight are known")]
    Buffers(u16),
    /// The backend had other state than its requests.
    #[error("its state cannot be recovered")]
    State,
}

impl Inflight {
    /// Starts tracking a virtqueue that lies in the node's memory, from its first buffer or its
    /// present state.
    pub(super) fn track(memory: &NodeMemory, queue: &Virtqueue) -> Self {
        let mut new = Self::of(queue);
        if new.used.index(&memory.guest()) != 0 {
            new.restart_tracking(&memory.guest());
        }
        new
    }

    /// Starts tracking a virtqueue of a copy, which no backend has served yet: when the snapshot was
    /// taken, all of its buffers had been used.
    pub(super) fn track_unserved(memory: &NodeMemory, queue: &Virtqueue) -> Self {
        let mut new = Self::of(queue);
        new.seen_used = new.used.index(&memory.guest());
        new.seen_available = new.seen_used;
        new
    }

    fn of(queue: &Virtqueue) -> Self {
        let ring = |start, entry| Ring {
            start,
            size: queue.size,
            entry,
        };
        Self {
            available: ring(queue.driver, AVAILABLE_ENTRY),
            used: ring(queue.device, USED_ENTRY),
            seen_available: 0,
            seen_used: 0,
            known: Vec::new(),
            unknown: 0,
        }
    }

    /// Reads the rings; whether either has moved since the last time.
    pub(super) fn update(&mut self, memory: &NodeMemory) -> bool {
        let memory = memory.guest();
        // Read first: each used buffer was made available before.
        let used = self.used.index(&memory);
        let available = self.available.index(&memory);
        if (available, used) == (self.seen_available, self.seen_used) {
            return false;
        }
        let made = self
            .available
            .heads(&memory, self.seen_available, available);
        let came = self.used.heads(&memory, self.seen_used, used);
        match made.zip(came) {
            Some((made, came)) => {
                (self.seen_available, self.seen_used) = (available, used);
                self.account(made, &came);
                // The driver or the backend broke the protocol.
                if self.known.len() + usize::from(self.unknown) != usize::from(self.count()) {
                    self.restart_tracking(&memory);
                }
            }
            None => self.restart_tracking(&memory),
        }
        true
    }

    /// Whether, when the rings were read last, all buffers had been used.
    pub(super) fn is_drained(&self) -> bool {
        self.count() == 0
    }

    /// Number of buffers in flight.
    fn count(&self) -> u16 {
        self.seen_available.wrapping_sub(self.seen_used)
    }

    fn account(&mut self, made: Vec<u16>, came: &[u16]) {
        self.known.extend(made);
        for head in came {
            match self.known.iter().position(|known| known == head) {
                Some(place) => drop(self.known.remove(place)),
                None => self.unknown = self.unknown.saturating_sub(1),
            }
        }
    }

    /// Restarts tracking with all buffers in flight unknown, or known if all heads are in flight.
    fn restart_tracking(&mut self, memory: &GuestMemoryMmap<()>) {
        self.seen_used = self.used.index(memory);
        self.seen_available = self.available.index(memory);
        self.known.clear();
        self.unknown = self.count();
        let size = self.available.size;
        if self.unknown == size && self.used.index(memory) == self.seen_used {
            self.known.extend(0..size);
            self.unknown = 0;
        }
    }

    /// The tracked state as a checkpoint record of 16-bit numbers.
    pub(super) fn record(&self) -> Vec<u8> {
        let head = [self.seen_available, self.seen_used, self.unknown];
        let count = self.known.len() as u16;
        let words = head
            .iter()
            .chain(std::iter::once(&count))
            .chain(&self.known);
        words.flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Restores the state of a checkpoint record. An invalid record is ignored, or detected by the
    /// next update.
    pub(super) fn restore(&mut self, record: &[u8]) {
        let (pairs, _) = record.as_chunks::<2>();
        let mut words = pairs.iter().map(|pair| u16::from_ne_bytes(*pair));
        let [Some(available), Some(used), Some(unknown), Some(count)] =
            std::array::from_fn(|_| words.next())
        else {
            return;
        };
        let known: Vec<_> = words.take(count.into()).collect();
        let size = self.available.size;
        if known.len() == usize::from(count) && known.iter().all(|head| *head < size) {
            (self.seen_available, self.seen_used) = (available, used);
            (self.known, self.unknown) = (known, unknown);
        }
    }

    /// Rewrites the available ring so that the next backend finds exactly the buffers in flight.
    /// Only while no backend uses the queue. Returns the index of the first entry; the driver may
    /// add entries behind meanwhile.
    ///
    /// # Errors
    /// [`Unrecoverable::Buffers`]; the ring is unchanged.
    pub(super) fn requeue(&mut self, memory: &NodeMemory) -> Result<u16, Unrecoverable> {
        self.update(memory);
        let inflight = self.count();
        if usize::from(inflight) != self.known.len() || inflight > self.available.size {
            return Err(Unrecoverable::Buffers(inflight));
        }
        let memory = memory.guest();
        for (number, head) in (0..inflight).zip(&self.known) {
            let place = self.available.place(self.seen_used.wrapping_add(number));
            memory
                .store(head.to_le(), place, Ordering::Relaxed)
                .map_err(|_| Unrecoverable::Buffers(inflight))?;
        }
        Ok(self.seen_used)
    }
}
