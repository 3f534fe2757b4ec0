//! What each core counts, for `insula stats` to show.

use core::mem::offset_of;

use insula_abi::lwk::Counters;

use super::{AREA, number};

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// A system call that this kernel executed.
    LocalCalls,
    /// A system call that the base executed.
    DelegatedCalls,
    /// A page fault of a program's.
    Faults,
    /// A fault of the base, resolved here.
    Questions,
    /// A request of this kernel's own.
    Requests,
    /// An entry from a program.
    Entries,
    /// A thread that was given a core.
    Switches,
    /// A ring of the base's doorbell.
    Rings,
}

/// Counts it, as of the core that calls.
pub(crate) fn count(counter: Counter) {
    let offset = match counter {
        Counter::LocalCalls => offset_of!(Counters, local_calls),
        Counter::DelegatedCalls => offset_of!(Counters, delegated_calls),
        Counter::Faults => offset_of!(Counters, faults),
        Counter::Questions => offset_of!(Counters, questions),
        Counter::Requests => offset_of!(Counters, requests),
        Counter::Entries => offset_of!(Counters, entries),
        Counter::Switches => offset_of!(Counters, switches),
        Counter::Rings => offset_of!(Counters, rings),
    };
    if let Some(area) = AREA.get() {
        area.count(number(), offset);
    }
}

/// Counts a system call, by its number.
pub(crate) fn count_call(number: u64) {
    if let Some(area) = AREA.get() {
        area.count_call(number);
    }
}
