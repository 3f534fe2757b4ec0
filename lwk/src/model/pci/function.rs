//! A PCI function by its configuration space: what it is, and how it is made quiet and reset.
//!
//! Source: PCI Express Base Specification 5.0, sections 7.5.1 (header), 7.5.2 (power management), 7.5.3
//! (capability of PCI Express), 6.6.2 (function level reset); PCI Local Bus Specification 3.0, section
//! 6.2.5.1 (sizes of BARs).

use insula_abi::pci::{PCI_BARS, PCI_DECODE, PCI_DMA};

use crate::model::pci::config::{Bar, COMMAND, COMMAND_MASK, Config, find_capability};
use crate::model::pci::msix::Msix;

const CLASS: u16 = 0x08;
const HEADER_TYPE: u16 = 0x0c;
const BARS: u16 = 0x10;

const COMMAND_MEMORY: u32 = 1 << 1;
const COMMAND_MASTER: u32 = 1 << 2;
const COMMAND_NO_LINE: u32 = 1 << 10;

const POWER_MANAGEMENT: u32 = 0x01;
const POWER_CONTROL: u16 = 4;
const POWER_STATE: u32 = 3;
const EXPRESS: u32 = 0x10;
const EXPRESS_FEATURES: u16 = 4;
const HAS_RESET: u32 = 1 << 28;
const EXPRESS_CONTROL: u16 = 8;
pub(super) const BEGIN_RESET: u32 = 1 << 15;
pub(super) const TRANSACTIONS_PENDING: u32 = 1 << 21;

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Segment, bus, device and function, of 16, 8, 5 and 3 bits.
    pub address: u32,
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    /// Its memory BARs.
    pub bars: [Bar; PCI_BARS],
    /// The registers of all BARs, which a reset clears.
    registers: [u32; PCI_BARS],
    /// Its capability of power management.
    power: Option<u16>,
    /// Its capability of PCI Express, if it has a function level reset.
    express: Option<u16>,
    /// Its messages.
    messages: Option<Msix>,
}

impl Function {
    /// Finds out what is at an address; `None` if nothing is, or a bridge. Decoding and DMA are off
    /// afterwards.
    pub fn probe(address: u32, config: &mut impl Config) -> Option<Self> {
        let id = config.read(0);
        let is_endpoint = config.read(HEADER_TYPE) >> 16 & 0x7f == 0;
        if id as u16 == u16::MAX || !is_endpoint {
            return None;
        }
        let mut function = Self {
            address,
            vendor: id as u16,
            device: (id >> 16) as u16,
            class: config.read(CLASS) >> 8,
            bars: [Bar::default(); PCI_BARS],
            registers: core::array::from_fn(|index| config.read(register(index))),
            power: find_capability(config, POWER_MANAGEMENT),
            express: find_capability(config, EXPRESS),
            messages: None,
        };
        let has_reset = |at: &u16| config.read(at + EXPRESS_FEATURES) & HAS_RESET != 0;
        function.express = function.express.filter(has_reset);
        function.quiesce(config);
        function.bars = function.find_bars(config);
        function.messages = Msix::find(config, &function.bars);
        Some(function)
    }

    /// Finds the memory BARs. Decoding is off.
    fn find_bars(&self, config: &mut impl Config) -> [Bar; PCI_BARS] {
        let mut bars = [Bar::default(); PCI_BARS];
        let mut index = 0;
        while index < PCI_BARS {
            let low = self.registers[index];
            let is_memory = low & 1 == 0;
            let is_wide = is_memory && low >> 1 & 3 == 2 && index + 1 < PCI_BARS;
            let high = if is_wide {
                self.registers[index + 1]
            } else {
                0
            };
            let mask = u64::from(low_mask(config, index, low))
                | u64::from(match is_wide {
                    true => all_ones(config, index + 1, high),
                    false => u32::MAX,
                }) << 32;
            let start = u64::from(high) << 32 | u64::from(low & !0xf);
            let size = (!mask).wrapping_add(1);
            if is_memory && start != 0 && size.is_power_of_two() {
                bars[index] = Bar { start, size };
            }
            index += if is_wide { 2 } else { 1 };
        }
        bars
    }

    /// Whether a reset brings it back to its defaults.
    #[must_use]
    pub fn has_reset(&self) -> bool {
        self.express.is_some()
    }

    /// Switches decoding and DMA on or off, by flags of `insula_pci.h`. Interrupt lines stay off.
    pub fn enable(&self, config: &mut impl Config, flags: u64) {
        let mut command = COMMAND_NO_LINE;
        if flags & PCI_DECODE != 0 {
            command |= COMMAND_MEMORY;
        }
        if flags & PCI_DMA != 0 {
            command |= COMMAND_MASTER;
        }
        config.write(COMMAND, command);
        // What the device has written before has arrived when its answer has.
        config.read(COMMAND);
    }

    /// Whether decoding is on.
    pub(super) fn is_decoding(&self, config: &impl Config) -> bool {
        config.read(COMMAND) & COMMAND_MEMORY != 0
    }

    /// Returns its messages, if it has any.
    pub(super) fn messages(&self) -> Option<Msix> {
        self.messages
    }

    /// Switches decoding and DMA off. Returns whether no transaction of the device is under way any
    /// more, so that its memory can be used for something else.
    pub fn quiesce(&self, config: &mut impl Config) -> bool {
        /// Transactions take microseconds, and so does a read of configuration space.
        const TRIES: u32 = 200;
        self.enable(config, 0);
        let Some(express) = self.express else {
            return true;
        };
        let is_pending = |_| config.read(express + EXPRESS_CONTROL) & TRANSACTIONS_PENDING != 0;
        (0..TRIES).any(|at| !is_pending(at))
    }

    /// Has it leave a state of low power. Returns whether it was in one.
    pub fn wake(&self, config: &mut impl Config) -> bool {
        let Some(at) = self.power.map(|power| power + POWER_CONTROL) else {
            return false;
        };
        let control = config.read(at);
        if control & POWER_STATE == 0 {
            return false;
        }
        config.write(at, control & COMMAND_MASK & !POWER_STATE);
        true
    }

    /// Begins a function level reset, if it has one. Its configuration space is left alone for 100 ms
    /// then.
    pub fn begin_reset(&self, config: &mut impl Config) -> bool {
        let Some(at) = self.express.map(|express| express + EXPRESS_CONTROL) else {
            return false;
        };
        let control = config.read(at) & COMMAND_MASK;
        config.write(at, control | BEGIN_RESET);
        true
    }

    /// Whether it answers, after a reset.
    pub fn is_there(&self, config: &impl Config) -> bool {
        config.read(0) == u32::from(self.device) << 16 | u32::from(self.vendor)
    }

    /// Writes what a reset has cleared: its addresses. Interrupts are off, also if it has no reset.
    pub fn restore(&self, config: &mut impl Config) {
        self.enable(config, 0);
        if let Some(messages) = self.messages {
            messages.set_enabled(config, false);
        }
        for (index, &value) in self.registers.iter().enumerate() {
            config.write(register(index), value);
        }
    }
}

fn register(index: usize) -> u16 {
    BARS + 4 * index as u16
}

/// Returns which bits of a BAR's register can be set.
fn all_ones(config: &mut impl Config, index: usize, old: u32) -> u32 {
    config.write(register(index), u32::MAX);
    let mask = config.read(register(index));
    config.write(register(index), old);
    mask
}

fn low_mask(config: &mut impl Config, index: usize, old: u32) -> u32 {
    all_ones(config, index, old) & !0xf
}
