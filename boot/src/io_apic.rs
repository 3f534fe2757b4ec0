//! The fake I/O APIC of a node.
//!
//! Without an I/O APIC in the MADT, Linux programs the ELCR of the machine's real interrupt
//! controllers at port 0x4d0. With this one it finds an I/O APIC of 24 inputs whose registers are
//! plain memory: it never delivers anything. The base can read what Linux wrote last (see
//! [`power_button`](crate::power_button)). The page is in the low chunk, as its address must have
//! 32 bits, and reserved in the memory map.

use crate::chunk::{Chunk, Memory, PAGE};
use crate::tboot;

/// Offset of the data window: plain memory, so every register reads the same.
pub(crate) const DATA_WINDOW: usize = 0x10;
/// Version register: version 0x20, 0x17 + 1 inputs (Intel 82093AA datasheet, section 3.2.2).
const VERSION: u32 = 0x0017_0020;

/// The page: near the end of the low chunk, before [`tboot`]'s.
pub(crate) fn page_of(memory: &Memory) -> Chunk {
    let end = tboot::page_of(memory).start;
    Chunk::between(end - PAGE, end)
}

/// Initial contents of the page.
pub(crate) fn to_bytes() -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    page[DATA_WINDOW..DATA_WINDOW + 4].copy_from_slice(&VERSION.to_le_bytes());
    page
}
