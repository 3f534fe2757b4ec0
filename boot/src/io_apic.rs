//! The page that passes for the node's I/O APIC.
//!
//! Without any I/O APIC in the MADT, Linux programs the ELCR of the machine's real interrupt controllers at port
//! 0x4d0. With this one it finds an I/O APIC of 24 inputs, all of whose registers read and write as plain memory:
//! nothing is ever delivered by it. What Linux writes to it last can be read by the base (see
//! [`power_button`](crate::power_button)). The page is low in memory as its address must have 32 bits; it is withheld from the
//! kernel in the memory map.

use crate::chunk::{Chunk, Memory, PAGE};
use crate::tboot;

/// The window through which the selected register is read: plain memory, so the same value for each.
pub(crate) const DATA_WINDOW: usize = 0x10;
/// Version register: version 0x20, 0x17 + 1 inputs (Intel 82093AA datasheet, section 3.2.2).
const VERSION: u32 = 0x0017_0020;

/// Where the page lies: near the end of the low chunk, before [`tboot`]'s.
pub(crate) fn page_of(memory: &Memory) -> Chunk {
    let end = tboot::page_of(memory).start;
    Chunk::between(end - PAGE, end)
}

/// What the page holds at start.
pub(crate) fn to_bytes() -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    page[DATA_WINDOW..DATA_WINDOW + 4].copy_from_slice(&VERSION.to_le_bytes());
    page
}
