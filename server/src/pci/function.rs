//! Functions of the node.

use std::time::Duration;

use insula_abi::pci::{PCI_BARS, PCI_DECODE, PCI_DMA, PciFunction};
use nix::errno::Errno;

use super::sys::{self, Registers};
use super::{Device, PciAddress, SmallRegisters};
use crate::Endpoint;

pub use super::sys::Memory;

/// Why a function cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This is no node of the lightweight kernel.
    #[error(
        "devices are driven only on a node of the lightweight kernel: start it by `insula exec`"
    )]
    NotOnANode,
    /// The node was not given that function.
    #[error("the node has no function {0}: `insula run --device` gives it one")]
    NotThere(PciAddress),
    /// Somebody has claimed the function.
    #[error("another program drives {0}, or it cannot be reset")]
    Taken(PciAddress),
    /// The caller lacks a capability on the base.
    #[error("driving a device needs CAP_SYS_RAWIO")]
    NotPermitted,
    /// The kernel refuses something else.
    #[error("{0}")]
    Other(Errno),
}

impl Error {
    fn of(address: PciAddress, errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::NotOnANode,
            Errno::ENODEV => Self::NotThere(address),
            Errno::EBUSY => Self::Taken(address),
            Errno::EPERM => Self::NotPermitted,
            errno => Self::Other(errno),
        }
    }
}

/// A function, as it is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionState {
    /// Its address.
    pub address: PciAddress,
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Class, subclass and programming interface, of 8 bits each.
    pub class: u32,
    /// Process id of who has claimed it.
    pub owner: Option<u32>,
    /// Bytes of each memory BAR; 0 for others.
    pub bars: [u64; PCI_BARS],
}

impl From<&PciFunction> for FunctionState {
    fn from(info: &PciFunction) -> Self {
        Self {
            address: PciAddress::from_number(info.address),
            vendor: info.vendor,
            device: info.device,
            class: info.class_code,
            owner: (info.owner != 0).then_some(info.owner),
            bars: info.bars,
        }
    }
}

/// Returns the functions that this node was given.
///
/// # Errors
/// [`Error::NotOnANode`].
pub fn functions() -> Result<Vec<FunctionState>, Error> {
    // A node keeps the functions that it has when it starts.
    let failed = |errno| Error::of(PciAddress::from_number(0), errno);
    let all = sys::list(&mut []).map_err(failed)?;
    let mut listed = vec![PciFunction::default(); all];
    let all = sys::list(&mut listed).map_err(failed)?;
    listed.truncate(all);
    Ok(listed.iter().map(FunctionState::from).collect())
}

/// A function that this process has claimed, with the registers of one of its BARs. Released when it is
/// dropped: DMA is off then.
#[derive(Debug)]
pub struct ClaimedFunction {
    registers: Registers,
    claim: Claim,
    /// Where its first message arrives.
    interrupts: Option<Endpoint>,
}

/// Has the first message of a function that this process has claimed arrive at an endpoint: the thread that serves there
/// goes on then ([`Endpoint::serve_waiting`]).
///
/// # Errors
/// [`Errno::EOPNOTSUPP`] if the function or the node cannot do that; [`Errno::ENOSPC`], [`Errno::ENOMEM`].
pub fn interrupt(address: PciAddress, endpoint: &Endpoint) -> Result<(), Errno> {
    const FIRST: u64 = 0;
    sys::interrupt(address.number(), FIRST, endpoint.number())
}

/// Released last, when nothing is mapped any more.
#[derive(Debug)]
struct Claim(PciAddress);

impl Drop for Claim {
    fn drop(&mut self) {
        sys::release(self.0.number());
    }
}

impl ClaimedFunction {
    /// Claims a function, which resets it, and maps at most so many bytes of a BAR.
    ///
    /// # Errors
    /// [`Error`].
    pub fn claim(address: PciAddress, bar: usize, bytes: u64) -> Result<Self, Error> {
        const PAGE: u64 = 4096;
        let failed = |errno| Error::of(address, errno);
        let all = functions()?;
        let function = all.iter().find(|function| function.address == address);
        let function = function.ok_or(Error::NotThere(address))?;
        let size = function.bars.get(bar).copied().unwrap_or_default();
        sys::claim(address.number()).map_err(failed)?;
        let claim = Claim(address);
        let size = size.min(bytes).next_multiple_of(PAGE) as usize;
        let registers = Registers::map(address.number(), bar as u64, size).map_err(failed)?;
        sys::enable(address.number(), PCI_DECODE).map_err(failed)?;
        Ok(Self {
            registers,
            claim,
            interrupts: None,
        })
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        self.claim.0
    }

    /// Reads a word of its configuration space.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if the offset is no multiple of 4 below 4096.
    pub fn read_config(&self, offset: u64) -> Result<u32, Errno> {
        sys::read_config(self.claim.0.number(), offset)
    }
}

impl Device for ClaimedFunction {
    type Memory = Memory;

    fn size(&self) -> usize {
        self.registers.size()
    }

    fn read(&self, offset: usize) -> u32 {
        self.registers.read(offset)
    }

    fn write(&mut self, offset: usize, value: u32) {
        self.registers.write(offset, value);
    }

    fn enable_dma(&mut self, is_on: bool) -> Result<(), Errno> {
        let dma = if is_on { PCI_DMA } else { 0 };
        sys::enable(self.claim.0.number(), PCI_DECODE | dma)
    }

    fn allocate(&mut self, bytes: usize) -> Result<Memory, Errno> {
        Memory::allocate(self.claim.0.number(), bytes)
    }

    /// Uses an endpoint of its own, of the function's name.
    fn enable_interrupt(&mut self) -> bool {
        let endpoint = Endpoint::create(&self.claim.0.to_string());
        let is_routed = |endpoint: &Endpoint| interrupt(self.claim.0, endpoint).is_ok();
        self.interrupts = endpoint.ok().filter(is_routed);
        self.interrupts.is_some()
    }

    fn wait(&mut self, timeout: Duration) {
        match &self.interrupts {
            // Whether it has come, or the time is over: the caller looks at the device.
            Some(endpoint) => drop(endpoint.wait_for_interrupt(timeout)),
            None => std::thread::yield_now(),
        }
    }
}

impl SmallRegisters for ClaimedFunction {
    fn read8(&self, offset: usize) -> u8 {
        self.registers.read(offset)
    }

    fn write8(&mut self, offset: usize, value: u8) {
        self.registers.write(offset, value);
    }

    fn read16(&self, offset: usize) -> u16 {
        self.registers.read(offset)
    }

    fn write16(&mut self, offset: usize, value: u16) {
        self.registers.write(offset, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linux_gives_no_functions() {
        assert_eq!(functions(), Err(Error::NotOnANode));
        let address = "0000:01:00.0".parse().unwrap();
        let claimed = ClaimedFunction::claim(address, 0, 4096);
        assert_eq!(claimed.err(), Some(Error::NotOnANode));
        assert!(sys::claim(address.number()).is_err());
        assert!(Memory::allocate(address.number(), 4096).is_err());
    }
}
