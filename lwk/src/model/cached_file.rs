//! The pages of a server's file that its server shares with this kernel, which then reads them without asking.

use alloc::collections::BTreeMap;

use crate::model::vma::PAGE;

/// After this time the server is to hear of a read again, as of Linux' `relatime`.
const READ_INTERVAL_NS: u64 = 24 * 3600 * 1_000_000_000;

/// A part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePart<'a, P> {
    /// The page.
    pub page: &'a P,
    /// Where in it the part begins.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A file, and those of its pages that are shared.
#[derive(Debug)]
pub struct CachedFile<P> {
    /// The file's size, unless the server is to be asked next; and when it has heard of a read last, in ns since boot.
    known: Option<(u64, u64)>,
    pages: BTreeMap<u64, P>,
}

impl<P> Default for CachedFile<P> {
    fn default() -> Self {
        Self {
            known: None,
            pages: BTreeMap::new(),
        }
    }
}

impl<P> CachedFile<P> {
    /// Takes over a page, by its number in the file, which has that size. Returns the page that it replaces.
    pub fn share(&mut self, number: u64, page: P, (size, now_ns): (u64, u64)) -> Option<P> {
        self.known = Some((size, now_ns));
        self.pages.insert(number, page)
    }

    /// Has the server be asked next: the file's size or times have changed, but no page.
    pub fn set_changed(&mut self) {
        self.known = None;
    }

    /// Removes pages: as many as `count`, from `first` on. Returns them.
    pub fn invalidate(&mut self, first: u64, count: u64) -> BTreeMap<u64, P> {
        let mut removed = self.pages.split_off(&first);
        if let Some(end) = first.checked_add(count) {
            self.pages.append(&mut removed.split_off(&end));
        }
        removed
    }

    /// Whether no page is shared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the file's size, if it needs not be asked for.
    #[must_use]
    pub fn size(&self, now_ns: u64) -> Option<u64> {
        let (size, heard_ns) = self.known?;
        (now_ns.saturating_sub(heard_ns) < READ_INTERVAL_NS).then_some(size)
    }

    /// Returns how many of some bytes a read from an offset gets; `None` if the server has to be asked.
    #[must_use]
    pub fn readable(&self, offset: u64, wanted: u64, now_ns: u64) -> Option<u64> {
        let length = self.size(now_ns)?.saturating_sub(offset).min(wanted);
        if length == 0 {
            return Some(0);
        }
        let numbers = offset / PAGE..=(offset + length - 1) / PAGE;
        let present = self.pages.range(numbers.clone()).count() as u64;
        (present == numbers.end() - numbers.start() + 1).then_some(length)
    }

    /// Returns the parts of a range of which [`Self::readable`] says that it can be read.
    pub fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = PagePart<'_, P>> {
        let end = offset.saturating_add(length);
        let pages = self.pages.range(offset / PAGE..end.div_ceil(PAGE));
        pages.map(move |(number, page)| {
            let start = offset.max(number * PAGE);
            PagePart {
                page,
                offset: start - number * PAGE,
                length: end.min((number + 1).saturating_mul(PAGE)) - start,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: u64 = READ_INTERVAL_NS;

    /// A file of 10,000 bytes whose pages 0 and 2 are shared.
    fn file() -> CachedFile<char> {
        let mut file = CachedFile::default();
        file.share(0, 'a', (10_000, 5));
        file.share(2, 'c', (10_000, 5));
        file
    }

    #[test]
    fn what_is_shared_can_be_read_up_to_the_end() {
        let file = file();
        assert_eq!(file.readable(0, 4096, 6), Some(4096));
        assert_eq!(file.readable(0, 4097, 6), None);
        assert_eq!(file.readable(4096, 1, 6), None);
        assert_eq!(file.readable(8192, 9999, 6), Some(1808));
        assert_eq!(file.readable(10_000, 1, 6), Some(0));
        assert_eq!(file.readable(u64::MAX, u64::MAX, 6), Some(0));
        assert_eq!(file.readable(5000, 0, 6), Some(0));
    }

    #[test]
    fn the_server_is_asked_after_a_change_and_after_a_day() {
        let mut file = file();
        assert_eq!(file.readable(0, 1, DAY_NS + 5), None);
        file.set_changed();
        assert_eq!(file.readable(0, 1, 6), None);
        assert_eq!(file.size(6), None);
        // Its other pages are as they were.
        file.share(2, 'C', (9000, 7));
        assert_eq!(file.readable(0, 4096, 8), Some(4096));
        assert_eq!(file.readable(8192, 4096, 8), Some(808));
    }

    #[test]
    fn parts_cover_a_range() {
        let mut file = file();
        file.share(1, 'b', (10_000, 5));
        let parts: alloc::vec::Vec<_> = file
            .parts(4090, 4110)
            .map(|part| (*part.page, part.offset, part.length))
            .collect();
        assert_eq!(parts, [('a', 4090, 6), ('b', 0, 4096), ('c', 0, 8)]);
        let parts = file.parts(4100, 3);
        assert_eq!(
            parts.map(|part| (part.offset, part.length)).next(),
            Some((4, 3))
        );
        assert_eq!(file.parts(0, 0).count(), 0);
    }

    #[test]
    fn pages_that_are_not_shared_any_more_are_not_read() {
        let mut file = file();
        file.share(1, 'b', (10_000, 5));
        assert_eq!(file.invalidate(1, 1).into_values().next(), Some('b'));
        assert_eq!(file.readable(0, 4096, 6), Some(4096));
        assert_eq!(file.readable(0, 8192, 6), None);
        assert_eq!(file.invalidate(1, u64::MAX).len(), 1);
        assert_eq!(file.readable(8192, 1, 6), None);
        assert_eq!(file.invalidate(0, u64::MAX).len(), 1);
        assert!(file.is_empty());
    }
}
