//! Pages of an address space: their sizes and flags.

use insula_bare::paging::{Flags, PageSize};

use crate::model::vma::Protection;

/// Allocation orders of pages.
const SMALL_ORDER: u8 = 0;
const LARGE_ORDER: u8 = 9;

/// Returns the allocation order of a page's frames.
pub(super) fn order_of(size: PageSize) -> u8 {
    match size {
        PageSize::Small => SMALL_ORDER,
        _ => LARGE_ORDER,
    }
}

/// Without protection bits a page is not accessible to the program, but keeps its content.
pub(super) fn flags_of(protection: Protection) -> Flags {
    let mut flags = Flags::empty();
    flags.set(Flags::USER, !protection.is_empty());
    flags.set(Flags::WRITABLE, protection.contains(Protection::WRITE));
    flags.set(Flags::NO_EXECUTE, !protection.contains(Protection::EXECUTE));
    flags
}
