//! Faults of a process: pages of a program that the base needs outside of the program's calls, as
//! for another process or for I/O that completes between two calls.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use insula_abi::lwk::{FAULTS, Fault, FaultAnswer, Process};

use crate::base::process_pages::ProcessPages;
use crate::hw::clock;

/// For how long a page is kept at most until the base has looked it up: who needs it may have been
/// killed.
const KEEP_NS: u64 = 100_000_000;

/// A fault that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub struct ProcessFault {
    pages: ProcessPages,
    entry: usize,
    sequence: u64,
    /// Faulting address.
    pub address: u64,
    /// Whether the access is a write.
    pub write: bool,
}

/// The answer to a fault whose page is mapped, until the base has looked it up.
#[derive(Clone, Copy, Debug)]
pub struct FaultResolution {
    pages: ProcessPages,
    entry: usize,
    sequence: u64,
    end_ns: u64,
}

fn fault_word(entry: usize, offset: usize) -> usize {
    offset_of!(Process, faults) + entry * size_of::<Fault>() + offset
}

fn answer_word(entry: usize, offset: usize) -> usize {
    offset_of!(Process, answers) + entry * size_of::<FaultAnswer>() + offset
}

impl ProcessPages {
    /// Returns the faults that are not answered. One caller at a time.
    pub fn faults(&self) -> impl Iterator<Item = ProcessFault> {
        (0..FAULTS).filter_map(|entry| self.fault(entry))
    }

    fn fault(&self, entry: usize) -> Option<ProcessFault> {
        // First the sequence number: the base has written the rest before.
        let sequence = self.load(fault_word(entry, offset_of!(Fault, sequence)));
        let answered = self.load(answer_word(entry, offset_of!(FaultAnswer, sequence)));
        (sequence != answered).then(|| ProcessFault {
            pages: *self,
            entry,
            sequence,
            address: self.load(fault_word(entry, offset_of!(Fault, address))),
            write: self.load(fault_word(entry, offset_of!(Fault, access))) != 0,
        })
    }
}

impl ProcessFault {
    /// Answers it: 0, or a negative errno.
    pub fn answer(&self, error: u64) {
        let store = |offset, value| {
            let word = self.pages.word(answer_word(self.entry, offset));
            word.store(value, Ordering::Release);
        };
        store(offset_of!(FaultAnswer, error), error);
        store(offset_of!(FaultAnswer, sequence), self.sequence);
        self.pages.area().ring_base();
    }

    /// Returns the answer that is given next.
    #[must_use]
    pub fn resolution(&self) -> FaultResolution {
        FaultResolution {
            pages: self.pages,
            entry: self.entry,
            sequence: self.sequence,
            end_ns: clock::now_ns() + KEEP_NS,
        }
    }
}

impl FaultResolution {
    /// Whether the base has looked the page up since, or has had the time for it.
    #[must_use]
    pub fn is_seen(&self) -> bool {
        let word = fault_word(self.entry, offset_of!(Fault, looked_up));
        let since = self.pages.load(word).wrapping_sub(self.sequence);
        since.cast_signed() >= 0 || clock::now_ns() >= self.end_ns
    }
}
