//! The generation of a node: a number by which its kernel notices that it is a copy, and generates its
//! random numbers anew.
//!
//! The number lies in the page through which the node ends (see `tboot.rs`), which a copy has of its own
//! anyway. A copy gets another number before it goes on, and its kernel an interrupt: that of the power
//! button, as a node's I/O APIC remembers one vector only. A byte beside the number tells which it is.
//!
//! Source: "Virtual Machine Generation ID", Microsoft, 2012; Linux' drivers/virt/vmgenid.c.

/// Offset in the page, a multiple of 8.
const NUMBER: u64 = 0x600;
/// Bytes of the number.
pub const NUMBER_SIZE: usize = 16;
/// Offset of the byte from the number.
pub(crate) const CHANGED: u64 = NUMBER_SIZE as u64;

/// Address of the number, if the page is at `tboot`.
pub(crate) fn number(tboot: u64) -> u64 {
    tboot + NUMBER
}

/// The bytes at [`Layout::generation`](crate::Layout::generation) of a node with another number: that,
/// and the byte that says so until its kernel has been notified.
#[must_use]
pub fn renewed(number: [u8; NUMBER_SIZE]) -> [u8; NUMBER_SIZE + 1] {
    let mut bytes = [1; NUMBER_SIZE + 1];
    bytes[..NUMBER_SIZE].copy_from_slice(&number);
    bytes
}
