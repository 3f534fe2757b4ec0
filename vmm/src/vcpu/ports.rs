//! Accesses to I/O ports.

use core::sync::atomic::Ordering;

use insula_abi::monitor::MonitorEnd;

use super::{Core, Outcome, RESET, ending};
use crate::guest::Guest;
use crate::policy::pci::{self, HOST_BRIDGE, Place};
use crate::policy::port;

/// What is read where nothing is.
const ABSENT: u32 = u32::MAX;

impl<G: Guest> Core<G> {
    pub(super) fn read_port(&mut self, port: u16, size: u8) -> Outcome {
        let port::Access::Absent(absent) = port::read(port) else {
            return Err(ending(MonitorEnd::PORT, port.into(), 0));
        };
        let value = match self.pci(port, size) {
            None | Some(pci::Access::Absent) => absent,
            Some(pci::Access::Address) => self.config_address,
            Some(pci::Access::Data(place)) => self.read_config(place),
        };
        let rax = self.guest.rax();
        self.guest.set_rax(match size {
            1 => rax & !0xff | u64::from(value as u8),
            2 => rax & !0xffff | u64::from(value as u16),
            _ => u64::from(value),
        });
        self.guest.skip_instruction();
        Ok(())
    }

    pub(super) fn write_port(&mut self, port: u16, size: u8, value: u32) -> Outcome {
        match port::write(port, value) {
            port::Access::Absent(_) => {}
            port::Access::Reset => return Err(RESET),
            port::Access::Violation => {
                return Err(ending(MonitorEnd::PORT, port.into(), value.into()));
            }
        }
        match self.pci(port, size) {
            None | Some(pci::Access::Absent) => {}
            Some(pci::Access::Address) => self.config_address = value,
            Some(pci::Access::Data(place)) => self.write_config(place, value),
        }
        self.guest.skip_instruction();
        Ok(())
    }

    /// What an access is for, if the node has PCI functions.
    fn pci(&self, port: u16, size: u8) -> Option<pci::Access> {
        let access = pci::decode(port, size, self.config_address)?;
        self.area.functions().next().map(|_| access)
    }

    fn read_config(&self, place: Place) -> u32 {
        let word = match place.function {
            0 => HOST_BRIDGE.get(place.word).copied().unwrap_or_default(),
            address => {
                let mut functions = self.area.functions();
                let found = functions.find(|function| function.address() == address);
                found.map_or(ABSENT, |function| {
                    function.config(place.word).0.load(Ordering::Relaxed)
                })
            }
        };
        place.read(word)
    }

    /// Two cores that write to one word at once may both be heeded in part: kernels do that under a lock.
    fn write_config(&self, place: Place, value: u32) {
        let mut functions = self.area.functions();
        let found = functions.find(|function| function.address() == place.function);
        if let Some((word, writable)) = found.map(|function| function.config(place.word)) {
            let old = word.load(Ordering::Relaxed);
            word.store(place.written(old, writable, value), Ordering::Relaxed);
        }
    }
}
