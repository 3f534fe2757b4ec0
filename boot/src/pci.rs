//! PCI buses that are a node's own.

use crate::LayoutError;
use crate::chunk::{Chunk, Memory, PAGE};
use std::collections::HashSet;
use std::ops::RangeInclusive;

/// Bytes of configuration space of one bus: 32 devices of 8 functions with 4 KiB each (PCI Express Base
/// Specification, section 7.2.2 "ECAM").
const BUS_SIZE: u64 = 1 << 20;

/// A bus with nothing on it but a function that is the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PciBus<'a> {
    /// Its segment group.
    pub segment: u16,
    /// Its number, as the base knows it.
    pub number: u8,
    /// Physical address of the configuration space of the segment's bus 0, whether that exists or not.
    pub ecam: u64,
    /// Memory addresses at which the function answers: its registers stay where they are, inside these.
    pub windows: &'a [Chunk],
    /// I/O ports at which it answers.
    pub ports: &'a [RangeInclusive<u16>],
}

impl PciBus<'_> {
    /// Where its configuration space lies.
    pub(crate) fn configuration_space(&self) -> Chunk {
        Chunk {
            start: self.ecam + u64::from(self.number) * BUS_SIZE,
            size: BUS_SIZE,
        }
    }
}

/// Checks that each bus is listed once, and that nothing of them is the node's memory as well.
pub(crate) fn check(buses: &[PciBus], memory: &Memory) -> Result<(), LayoutError> {
    let mut seen = HashSet::new();
    for bus in buses {
        let (segment, number) = (bus.segment, bus.number);
        if !seen.insert((segment, number)) {
            return Err(LayoutError::BusTwice { segment, number });
        }
        let all = bus.ecam.checked_add(256 * BUS_SIZE);
        if all.is_none() || !bus.ecam.is_multiple_of(BUS_SIZE) {
            return Err(LayoutError::BadBus { segment, number });
        }
        let space = bus.configuration_space();
        for window in bus.windows.iter().chain([&space]) {
            let pages = window.start.is_multiple_of(PAGE) && window.size.is_multiple_of(PAGE);
            let ends = window.start.checked_add(window.size).is_some();
            let apart = memory
                .all()
                .all(|chunk| chunk.end() <= window.start || window.end() <= chunk.start);
            if window.size == 0 || !pages || !ends || !apart {
                return Err(LayoutError::BadBus { segment, number });
            }
        }
    }
    Ok(())
}
