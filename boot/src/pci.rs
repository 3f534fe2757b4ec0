//! PCI buses of a node.

use crate::LayoutError;
use crate::chunk::{Chunk, Memory, PAGE};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// Bytes of configuration space of one bus: 32 devices of 8 functions with 4 KiB each (PCI Express
/// Base Specification, section 7.2.2 "ECAM").
const BUS_SIZE: u64 = 1 << 20;

/// A bus with one function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciBus<'a> {
    /// Segment group.
    pub segment: u16,
    /// Bus number on the base.
    pub number: u8,
    /// Physical address of the configuration space of the segment's bus 0, which need not exist.
    pub ecam: u64,
    /// MMIO windows of the function, in which its BARs stay.
    pub windows: &'a [Chunk],
    /// I/O ports of the function.
    pub ports: &'a [RangeInclusive<u16>],
}

impl PciBus<'_> {
    /// Address range of its configuration space.
    pub(crate) fn configuration_space(&self) -> Chunk {
        Chunk {
            start: self.ecam + u64::from(self.number) * BUS_SIZE,
            size: BUS_SIZE,
        }
    }
}

/// Checks that buses are unique and do not overlap the node's memory.
pub(crate) fn check(buses: &[PciBus], memory: &Memory) -> Result<(), LayoutError> {
    let mut seen = HashSet::new();
    for bus in buses {
        let (segment, number) = (bus.segment, bus.number);
        if !seen.insert((segment, number)) {
            return Err(LayoutError::DuplicateBus { segment, number });
        }
        let all = bus.ecam.checked_add(256 * BUS_SIZE);
        if all.is_none() || !bus.ecam.is_multiple_of(BUS_SIZE) {
            return Err(LayoutError::InvalidBus { segment, number });
        }
        let space = bus.configuration_space();
        for window in bus.windows.iter().chain([&space]) {
            let pages = window.start.is_multiple_of(PAGE) && window.size.is_multiple_of(PAGE);
            let ends = window.start.checked_add(window.size).is_some();
            let apart = memory
                .all()
                .all(|chunk| chunk.end() <= window.start || window.end() <= chunk.start);
            if window.size == 0 || !pages || !ends || !apart {
                return Err(LayoutError::InvalidBus { segment, number });
            }
        }
    }
    Ok(())
}
