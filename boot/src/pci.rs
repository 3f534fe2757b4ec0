//! PCI buses of a node.

use crate::LayoutError;
use crate::chunk::{Chunk, Memory, PAGE};
use insula_abi::monitor::{FUNCTION_CONFIG_WORDS, FUNCTION_MESSAGES, MONITOR_FUNCTIONS};
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
    /// How the node reaches the bus' configuration space.
    pub configuration: Configuration<'a>,
    /// MMIO windows of the function, in which its BARs stay.
    pub windows: &'a [Chunk],
    /// I/O ports of the function.
    pub ports: &'a [RangeInclusive<u16>],
}

/// How a node reaches the configuration space of a bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configuration<'a> {
    /// In memory: physical address of that of the segment's bus 0, which need not exist.
    Memory {
        /// The address.
        ecam: u64,
    },
    /// By I/O ports, for which the monitor of a confined node has an image of it.
    Ports(&'a ConfinedFunction),
}

/// A function as a confined node has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfinedFunction {
    /// Device and function number, of 5 and 3 bits.
    pub number: u8,
    /// What the node has as its configuration space.
    pub config: [u32; FUNCTION_CONFIG_WORDS],
    /// Bits of it that the node can change.
    pub writable: [u32; FUNCTION_CONFIG_WORDS],
    /// Pages of its MSI-X table, in one of its windows. The node has memory in place of the first one, and
    /// nothing in place of the others.
    pub message_table: Chunk,
    /// Number of messages in the table that the node has.
    pub messages: u32,
}

impl ConfinedFunction {
    /// Whether its table is in one of these windows, and the node's fits in a page.
    fn is_valid(&self, windows: &[Chunk]) -> bool {
        let table = self.message_table;
        let is_inside = |window: &Chunk| {
            window.start <= table.start
                && table.start - window.start < window.size
                && table.size <= window.size - (table.start - window.start)
        };
        let pages = table.start.is_multiple_of(PAGE) && table.size.is_multiple_of(PAGE);
        pages
            && table.size > 0
            && (1..=FUNCTION_MESSAGES).contains(&self.messages)
            && windows.iter().any(is_inside)
    }
}

impl PciBus<'_> {
    /// Physical address of the segment's configuration space, if the node has it in memory.
    pub(crate) fn ecam(&self) -> Option<u64> {
        match self.configuration {
            Configuration::Memory { ecam } => Some(ecam),
            Configuration::Ports(_) => None,
        }
    }

    /// Address range of its configuration space, if the node has it in memory.
    pub(crate) fn configuration_space(&self) -> Option<Chunk> {
        Some(Chunk {
            start: self.ecam()? + u64::from(self.number) * BUS_SIZE,
            size: BUS_SIZE,
        })
    }

    /// The function, if the node is confined.
    pub(crate) fn confined(&self) -> Option<&ConfinedFunction> {
        match self.configuration {
            Configuration::Memory { .. } => None,
            Configuration::Ports(function) => Some(function),
        }
    }

    /// Whether its configuration space is where it can be: ports reach segment 0.
    fn is_reachable(&self) -> bool {
        match self.configuration {
            Configuration::Memory { ecam } => {
                ecam.checked_add(256 * BUS_SIZE).is_some() && ecam.is_multiple_of(BUS_SIZE)
            }
            Configuration::Ports(function) => {
                self.segment == 0 && self.number > 0 && function.is_valid(self.windows)
            }
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
        if !bus.is_reachable() {
            return Err(LayoutError::InvalidBus { segment, number });
        }
        let space = bus.configuration_space();
        for window in bus.windows.iter().chain(&space) {
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

/// Checks that a confined node can have all of these buses.
pub(crate) fn check_confined(buses: &[PciBus]) -> Result<(), LayoutError> {
    let is_direct = |bus: &&PciBus| bus.confined().is_none();
    let too_many = buses.get(MONITOR_FUNCTIONS);
    match buses.iter().find(is_direct).or(too_many) {
        Some(bus) => Err(LayoutError::NotConfined {
            segment: bus.segment,
            number: bus.number,
        }),
        None => Ok(()),
    }
}
