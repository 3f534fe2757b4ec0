//! Per-core counters, for `insula stats`.

use core::mem::offset_of;

use insula_abi::lwk::Counters;

use crate::base::area::area;
use crate::hw::cores::number;

/// A counted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// System call executed by this kernel.
    LocalCalls,
    /// System call executed by the base.
    DelegatedCalls,
    /// Page fault of a program.
    Faults,
    /// Remote fault: a page fault of the base, resolved here.
    RemoteFaults,
    /// Request by this kernel itself.
    Requests,
    /// Entry from a program to the kernel.
    Entries,
    /// Switch to a thread.
    Switches,
}

/// Counts an event of the calling core.
pub(crate) fn count(counter: Counter) {
    let offset = match counter {
        Counter::LocalCalls => offset_of!(Counters, local_calls),
        Counter::DelegatedCalls => offset_of!(Counters, delegated_calls),
        Counter::Faults => offset_of!(Counters, faults),
        Counter::RemoteFaults => offset_of!(Counters, remote_faults),
        Counter::Requests => offset_of!(Counters, requests),
        Counter::Entries => offset_of!(Counters, entries),
        Counter::Switches => offset_of!(Counters, switches),
    };
    if let Some(area) = area() {
        area.count(number(), offset);
    }
}

/// Counts a system call by its number.
pub(crate) fn count_call(number: u64) {
    if let Some(area) = area() {
        area.count_call(number);
    }
}
