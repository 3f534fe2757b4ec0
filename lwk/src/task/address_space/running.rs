//! The address space of a process of the base that goes on here. The proxy's own memory, its *region*,
//! lies in the middle of its addresses.

use crate::model::errno::Errno;
use crate::model::running::Running;
use crate::task::address_space::AddressSpace;

impl AddressSpace {
    /// Takes over the mappings of a running process, as base mappings. The space is empty.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub(crate) fn take_over(&mut self, running: &Running<'_>) -> Result<(), Errno> {
        running.vmas().try_for_each(|vma| self.vmas.push(vma))?;
        self.set_region(running.region);
        self.heap = running.heap;
        Ok(())
    }

    /// Sets the part of the addresses that is the proxy's own; an empty one if that lies outside.
    pub(crate) fn set_region(&mut self, region: (u64, u64)) {
        self.region = region;
    }

    /// Returns the part of the addresses that is the proxy's own; an empty one if that lies outside.
    pub(crate) fn region(&self) -> (u64, u64) {
        self.region
    }

    /// Returns the parts of the addresses that are not the proxy's own.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let ((bottom, top), (start, end)) = (self.bounds, self.region);
        let parts = match start < end {
            true => [(bottom, start), (end, top)],
            false => [(bottom, top), (0, 0)],
        };
        parts.into_iter().filter(|(start, end)| start < end)
    }

    /// Finds the highest free range in a part of the addresses, but for what is the proxy's.
    pub(super) fn find_aligned_gap(
        &mut self,
        size: u64,
        alignment: u64,
        (bottom, top): (u64, u64),
    ) -> Option<u64> {
        let (start, end) = self.region;
        if start == end {
            return self.vmas.find_gap(size, alignment, bottom, top);
        }
        let ranges = [(end.max(bottom), top), (bottom, start.min(top))];
        let mut ranges = ranges.into_iter().filter(|(bottom, top)| bottom < top);
        ranges.find_map(|(bottom, top)| self.vmas.find_gap(size, alignment, bottom, top))
    }
}
