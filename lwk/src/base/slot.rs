//! A thread's syscall slot, which it shares with the thread of the proxy that executes its calls.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use insula_abi::lwk as abi;

use crate::base::area::DelegationArea;
use crate::base::process_pages::ProcessPages;

/// Number of scratch words, for call arguments passed by address.
pub(super) const SCRATCH_WORDS: usize = 7;

/// Reply of the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The call is complete.
    Result {
        /// Result, or negative errno.
        result: u64,
        /// Second result of some requests.
        value: u64,
    },
    /// Remote fault: in the middle of a call the base needs a page of the program.
    Fault {
        /// Faulting address.
        address: u64,
        /// Whether the access is a write.
        write: bool,
    },
}

/// Returns a word of a slot.
fn slot_word(area: DelegationArea, slot: u64, offset: usize) -> &'static AtomicU64 {
    let per_page = u64::from(abi::SLOTS_PER_PAGE);
    let (page, place) = (slot / per_page, slot % per_page);
    let at = place as usize * size_of::<abi::SyscallSlot>() + offset;
    area.word(page, at)
}

/// The reply to a remote fault that is resolved, until the base has seen it.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
    area: DelegationArea,
    slot: u64,
    /// Sequence number of the reply.
    sequence: u64,
}

impl Resolution {
    /// Whether the base has seen it: its thread has looked the page up again, is in another call or
    /// fault already, or has ended.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        let load = |offset| slot_word(self.area, self.slot, offset).load(Ordering::Acquire);
        let answered = load(offset_of!(abi::SyscallSlot, answer_sequence));
        // Later answers count, too: `faulting` may be that of a later fault by now.
        load(offset_of!(abi::SyscallSlot, faulting)) == 0
            || answered.wrapping_sub(self.sequence).cast_signed() >= 0
    }
}

/// A syscall slot.
#[derive(Debug)]
pub struct Slot {
    area: DelegationArea,
    number: u64,
    sequence: u64,
    /// Sequence number of the call that was cancelled.
    interrupted: u64,
    /// Doorbell that the base was told last.
    doorbell: u64,
}

impl Slot {
    /// Attaches to a free slot of the process: see [`DelegationArea::slot_belongs_to`].
    #[must_use]
    pub fn attach(area: DelegationArea, number: u64) -> Self {
        let mut slot = Self {
            area,
            number,
            sequence: 0,
            interrupted: 0,
            doorbell: 0,
        };
        // It may have been another thread's: continue its sequence.
        slot.sequence = slot
            .word(offset_of!(abi::SyscallSlot, sequence))
            .load(Ordering::Acquire);
        slot
    }

    fn word(&self, offset: usize) -> &'static AtomicU64 {
        slot_word(self.area, self.number, offset)
    }

    /// Returns the reply that is submitted next, to a remote fault.
    #[must_use]
    pub fn resolution(&self) -> Resolution {
        Resolution {
            area: self.area,
            slot: self.number,
            sequence: self.sequence.wrapping_add(1),
        }
    }

    /// Submits a call or request to the base.
    pub fn submit(&mut self, number: u64, arguments: [u64; 6]) {
        let words = [number].into_iter().chain(arguments);
        for (value, place) in words.zip(0..) {
            let at = offset_of!(abi::SyscallSlot, number) + 8 * place;
            self.word(at).store(value, Ordering::Relaxed);
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.word(offset_of!(abi::SyscallSlot, sequence))
            .store(self.sequence, Ordering::Release);
        // The base's thread says that it sleeps, then reads the sequence number; here it is the
        // other way round.
        fence(Ordering::SeqCst);
        if self
            .word(offset_of!(abi::SyscallSlot, base_asleep))
            .load(Ordering::Relaxed)
            != 0
        {
            self.area.ring(self.number);
        }
    }

    /// Returns the reply, once it has arrived.
    #[must_use]
    pub fn poll(&self) -> Option<Reply> {
        let answered = self
            .word(offset_of!(abi::SyscallSlot, answer_sequence))
            .load(Ordering::Acquire);
        if answered != self.sequence {
            return None;
        }
        // Read the kind first: the call's result may replace a remote fault that timed out, and its
        // kind is written last.
        let answer = |offset| self.word(offset).load(Ordering::Acquire);
        let kind = answer(offset_of!(abi::SyscallSlot, kind));
        let result = answer(offset_of!(abi::SyscallSlot, result));
        let value = answer(offset_of!(abi::SyscallSlot, value));
        Some(match kind {
            abi::ANSWER_FAULT => Reply::Fault {
                address: result,
                write: value != 0,
            },
            _ => Reply::Result { result, value },
        })
    }

    /// Writes words for calls of this slot, valid until the next ones. Returns their address in the
    /// proxy, if that is known.
    pub fn put_scratch(&self, process: &ProcessPages, words: &[u64]) -> Option<u64> {
        let at = offset_of!(abi::SyscallSlot, scratch);
        let slots = process.slots();
        if slots == 0 || words.len() > SCRATCH_WORDS {
            return None;
        }
        for (&word, place) in words.iter().zip(0..) {
            self.word(at + 8 * place).store(word, Ordering::Relaxed);
        }
        Some(slots + self.offset() + at as u64)
    }

    /// Sets the head of the list of robust futexes that the base releases when the process has
    /// exited; a list without a first entry is empty.
    pub fn set_robust_list(&self, process: &ProcessPages, [first, offset, pending]: [u64; 3]) {
        let at = offset_of!(abi::SyscallSlot, robust_list);
        let own = process.slots() + abi::MIRROR_SLOTS_SIZE + self.offset() + at as u64;
        let first = if first == 0 { own } else { first };
        for (word, place) in [first, offset, pending].into_iter().zip(0..) {
            self.word(at + 8 * place).store(word, Ordering::Relaxed);
        }
    }

    /// Returns its offset in the mapping of all slots.
    fn offset(&self) -> u64 {
        self.number * size_of::<abi::SyscallSlot>() as u64
    }

    /// Reads the scratch words. Any thread of the program may have changed them.
    #[must_use]
    pub fn scratch(&self) -> [u64; SCRATCH_WORDS] {
        let at = offset_of!(abi::SyscallSlot, scratch);
        core::array::from_fn(|place| self.word(at + 8 * place).load(Ordering::Relaxed))
    }

    /// Has the base cancel the current call, which then ends as if interrupted by a signal.
    pub fn interrupt(&mut self) {
        if self.interrupted != self.sequence {
            self.interrupted = self.sequence;
            self.area.interrupt(self.number);
        }
    }

    /// Sets the doorbell by which the base wakes this slot's core; 0 while the core is awake.
    /// Having set one, the caller polls once more before it sleeps.
    pub fn set_doorbell(&mut self, doorbell: u64) {
        if doorbell == self.doorbell {
            return;
        }
        self.doorbell = doorbell;
        self.word(offset_of!(abi::SyscallSlot, lwk_asleep))
            .store(doorbell, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}
