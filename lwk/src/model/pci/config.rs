//! Configuration space of a PCI function, and what all that read it have to know.
//!
//! Source: PCI Express Base Specification 5.0, section 7.5.1 (header); PCI Local Bus Specification 3.0, section
//! 6.7 (capabilities).

pub(super) const COMMAND: u16 = 0x04;
/// The lower half; bits of the upper one, the status, are cleared by writing ones.
pub(super) const COMMAND_MASK: u32 = 0xffff;
pub(super) const HAS_CAPABILITIES: u32 = 1 << 20;
const CAPABILITIES: u16 = 0x34;

/// Configuration space of a function, accessed in aligned words of 32 bits.
pub trait Config {
    /// Reads the word at an offset.
    fn read(&self, offset: u16) -> u32;
    /// Writes the word at an offset.
    fn write(&mut self, offset: u16, value: u32);
}

/// A memory BAR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bar {
    /// Physical address.
    pub start: u64,
    /// Bytes; 0 if there is none.
    pub size: u64,
}

/// Returns the offset of a capability.
pub(super) fn find_capability(config: &impl Config, id: u32) -> Option<u16> {
    /// More would overlap.
    const MOST: usize = 48;
    if config.read(COMMAND) & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut at = config.read(CAPABILITIES) as u16 & 0xfc;
    for _ in 0..MOST {
        if at < 0x40 {
            return None;
        }
        let header = config.read(at);
        if header & 0xff == id {
            return Some(at);
        }
        at = (header >> 8) as u16 & 0xfc;
    }
    None
}
