//! Messages by which a function interrupts (MSI-X).
//!
//! Source: PCI Express Base Specification 5.0, section 7.7.2 (capability, table); Intel SDM volume 3A,
//! section 11.11 (address and data of a message).

use insula_abi::pci::{PCI_BARS, PCI_MESSAGES_MAX};

use crate::model::errno::Errno;
use crate::model::pci::config::{Bar, Config, find_capability};

const CAPABILITY: u32 = 0x11;
const TABLE: u16 = 4;
/// The upper half of the capability's first word is its control register.
const LAST_ENTRY: u32 = 0x7ff << 16;
const MASK_ALL: u32 = 1 << 30;
const ENABLE: u32 = 1 << 31;
/// Bytes of an entry of the table.
const ENTRY_BYTES: u64 = 16;

/// The messages of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    capability: u16,
    /// Physical address of the table.
    table: u64,
    entries: u64,
}

impl Msix {
    /// Finds the messages of a function, if it has any in its memory BARs.
    pub(super) fn find(config: &impl Config, bars: &[Bar; PCI_BARS]) -> Option<Self> {
        let capability = find_capability(config, CAPABILITY)?;
        let entries = u64::from((config.read(capability) & LAST_ENTRY) >> 16) + 1;
        let place = config.read(capability + TABLE);
        let (bar, offset) = (bars.get(place as usize & 7)?, u64::from(place & !7));
        let end = offset + entries * ENTRY_BYTES;
        (end <= bar.size).then_some(Self {
            capability,
            table: bar.start + offset,
            entries,
        })
    }

    /// Has the function interrupt by messages, or not at all.
    pub(super) fn set_enabled(&self, config: &mut impl Config, is_on: bool) {
        let kept = config.read(self.capability) & !(ENABLE | MASK_ALL);
        let enable = if is_on { ENABLE } else { 0 };
        config.write(self.capability, kept | enable);
    }

    /// Returns the physical address of a message's entry in the table.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if there is none.
    pub(super) fn entry(&self, message: u64) -> Result<u64, Errno> {
        match message < self.entries.min(PCI_MESSAGES_MAX) {
            true => Ok(self.table + message * ENTRY_BYTES),
            false => Err(Errno::EINVAL),
        }
    }
}

/// An entry of a table: address (two words), data, and control.
pub trait TableEntry {
    /// Writes a word of it.
    fn write(&mut self, word: u64, value: u32);
}

const CONTROL: u64 = 3;
const MASKED: u32 = 1;

/// Has a message interrupt a core by a vector.
///
/// # Errors
/// [`Errno::EOPNOTSUPP`] if messages do not reach the core: its APIC id is above 255.
pub fn route(entry: &mut impl TableEntry, apic_id: u32, vector: u8) -> Result<(), Errno> {
    /// To one core, whose APIC id is in bits 12 to 19; fixed delivery by edges.
    const TO_CORE: u32 = 0xfee0_0000;
    let id = u8::try_from(apic_id).map_err(|_| Errno::EOPNOTSUPP)?;
    mask(entry);
    entry.write(0, TO_CORE | u32::from(id) << 12);
    entry.write(1, 0);
    entry.write(2, vector.into());
    entry.write(CONTROL, 0);
    Ok(())
}

/// Has a message not interrupt any more.
pub fn mask(entry: &mut impl TableEntry) {
    entry.write(CONTROL, MASKED);
}
