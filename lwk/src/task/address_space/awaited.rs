//! Pages that the base awaits: a remote fault has mapped each, and the base has not looked it up
//! again. They are not unmapped before: else a program that replaces its memory fast enough would
//! do so each time between the reply and the base's look at the page table, and the base's call
//! would never find the page. On Linux, too, a change of the address space waits for page faults.

use alloc::vec::Vec;

use crate::base::process_faults::FaultResolution;
use crate::base::slot::Resolution;
use crate::hw::memory::room::reserve_to_free;

/// Until when the base awaits a page.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaiting {
    /// Until it has seen the answer in a slot.
    Slot(Resolution),
    /// Until it has seen the answer to a fault of a process.
    Process(FaultResolution),
}

impl Awaiting {
    fn is_over(&self) -> bool {
        match self {
            Self::Slot(resolution) => resolution.is_seen(),
            Self::Process(resolution) => resolution.is_seen(),
        }
    }
}

impl From<Resolution> for Awaiting {
    fn from(resolution: Resolution) -> Self {
        Self::Slot(resolution)
    }
}

impl From<FaultResolution> for Awaiting {
    fn from(resolution: FaultResolution) -> Self {
        Self::Process(resolution)
    }
}

/// Addresses in pages that the base awaits.
#[derive(Debug, Default)]
pub(super) struct Awaited(Vec<(u64, Awaiting)>);

impl Awaited {
    /// Adds the page of an address. Without memory for that the base may have to ask for the page
    /// again.
    pub(super) fn add(&mut self, address: u64, awaiting: Awaiting) {
        self.forget_seen();
        if reserve_to_free(&mut self.0, 1).is_ok() {
            self.0.push((address, awaiting));
        }
    }

    /// Whether any is in a range.
    pub(super) fn is_any_within(&mut self, start: u64, end: u64) -> bool {
        self.forget_seen();
        let mut addresses = self.0.iter().map(|(address, _)| address);
        addresses.any(|address| (start..end).contains(address))
    }

    fn forget_seen(&mut self) {
        self.0.retain(|(_, awaiting)| !awaiting.is_over());
    }
}
