//! A node of the lightweight kernel: the area of its memory for delegation, and its options.

use insula_abi::lwk::{DelegationPlace, PAGE_SIZE};
use kimage::{Format, Loadable};

/// Pages of the delegation area of a node that runs programs: enough for some 80 processes, or 4000
/// threads.
pub(crate) const AREA_PAGES: u32 = 256;
/// Size of the same in bytes.
const AREA_SIZE: u64 = AREA_PAGES as u64 * PAGE_SIZE;

/// Option on a node's command line: the node powers off after its last program.
pub const ONCE: &str = "once";

/// Size in bytes of the delegation area of a node with that kernel; it follows the channels.
#[must_use]
pub(crate) fn area_size(kernel: &Loadable) -> u64 {
    match kernel.format {
        Format::Lwk => AREA_SIZE,
        _ => 0,
    }
}

/// The delegation area at that address.
#[must_use]
pub(crate) fn area(start: u64) -> DelegationPlace {
    DelegationPlace {
        start,
        pages: AREA_PAGES,
        reserved: 0,
    }
}
