//! Pages that the base awaits: a remote fault has mapped each, and the base has not looked it up
//! again. They are not unmapped before: else a program that replaces its memory fast enough would
//! do so each time between the reply and the base's look at the page table, and the base's call
//! would never find the page. On Linux, too, a change of the address space waits for page faults.

use alloc::vec::Vec;

use crate::base::slot::Resolution;
use crate::hw::memory::room::reserve_to_free;

/// Addresses in pages that the base awaits.
#[derive(Debug, Default)]
pub(super) struct Awaited(Vec<(u64, Resolution)>);

impl Awaited {
    /// Adds the page of an address, until the base has seen a resolution. Without memory for that
    /// the base may have to ask for the page again.
    pub(super) fn add(&mut self, address: u64, resolution: Resolution) {
        self.forget_seen();
        if reserve_to_free(&mut self.0, 1).is_ok() {
            self.0.push((address, resolution));
        }
    }

    /// Whether any is in a range.
    pub(super) fn is_any_within(&mut self, start: u64, end: u64) -> bool {
        self.forget_seen();
        let mut addresses = self.0.iter().map(|(address, _)| address);
        addresses.any(|address| (start..end).contains(address))
    }

    fn forget_seen(&mut self) {
        self.0.retain(|(_, resolution)| !resolution.is_seen());
    }
}
