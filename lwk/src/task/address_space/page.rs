//! Pages of an address space: their sizes and flags.

use insula_bare::paging::{Flags, Page, PageSize};

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

/// Returns the flags of a page that is to be copied before it is written.
pub(super) fn copied_on_write(flags: Flags) -> Flags {
    flags.difference(Flags::WRITABLE) | Flags::COPY_ON_WRITE
}

/// Whether a page's frame may have other owners.
pub(super) fn is_copied_on_write(page: &Page) -> bool {
    page.flags.contains(Flags::COPY_ON_WRITE)
}

#[cfg(test)]
mod tests {
    use insula_abi::lwk;
    use insula_bare::memory::PhysAddr;

    use super::*;

    #[test]
    fn the_base_knows_the_flag() {
        assert_eq!(Flags::COPY_ON_WRITE.bits(), lwk::COPY_ON_WRITE);
    }

    #[test]
    fn what_is_copied_on_write_keeps_all_rights_but_one() {
        let all = [
            Protection::empty(),
            Protection::READ,
            Protection::READ | Protection::WRITE,
            Protection::all(),
        ];
        for flags in all.map(flags_of) {
            let page = Page {
                start: 0,
                frame: PhysAddr(0),
                size: PageSize::Small,
                flags: copied_on_write(flags),
            };
            assert!(is_copied_on_write(&page) && !page.flags.contains(Flags::WRITABLE));
            assert!(!is_copied_on_write(&Page { flags, ..page }));
            let kept = Flags::USER | Flags::NO_EXECUTE;
            assert_eq!(page.flags.intersection(kept), flags.intersection(kept));
        }
    }
}
