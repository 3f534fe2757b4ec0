//! Virtual memory areas of a program, by address; none overlaps another.
//!
//! Pure: it handles neither frames nor page tables.

use alloc::collections::BTreeMap;

use bitflags::bitflags;

use crate::hw::memory::room;
use crate::model::errno::Errno;

/// Size of a page, in bytes.
pub const PAGE: u64 = 4096;

/// Maximum number of VMAs of a program: Linux' default `vm.max_map_count`.
pub const VMAS_MAX: usize = 65_530;
/// Bound on the kernel memory for one VMA.
const VMA_BYTES: u64 = 4096;

bitflags! {
    /// Access to memory: PROT_READ and so on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Protection: u8 {
        /// Readable.
        const READ = 1;
        /// Writable.
        const WRITE = 2;
        /// Executable.
        const EXECUTE = 4;
    }
}

bitflags! {
    /// Attributes of a VMA.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct VmaFlags: u8 {
        /// A forked child finds zeros (`MADV_WIPEONFORK`).
        const WIPE_ON_FORK = 1;
        /// A forked child has nothing there (`MADV_DONTFORK`).
        const DONT_FORK = 2;
        /// Left out of core files (`MADV_DONTDUMP`).
        const DONT_DUMP = 4;
        /// Its pages are copies of a file's content.
        const FILE_COPY = 8;
        /// The program may have changed the copy.
        const MAY_BE_DIRTY = 16;
        /// Beyond the end of the mapped file: every access fails.
        const BEYOND_EOF = 32;
        /// Write access cannot be enabled.
        const DENY_WRITE = 64;
        /// Part of a file mapping.
        const ANY_FILE = Self::FILE_COPY.bits() | Self::BEYOND_EOF.bits();
    }
}

/// Reference of a VMA to a shared-memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// Number of the object.
    pub number: u64,
    /// Address at which the object's first page would be.
    pub base: u64,
}

/// A virtual memory area. Both ends are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// Address behind the last one.
    pub end: u64,
    /// Allowed accesses.
    pub protection: Protection,
    /// The shared-memory object it maps; `None` for private pages.
    pub object: Option<ObjectRef>,
    /// Attributes.
    pub flags: VmaFlags,
}

impl Vma {
    /// Creates a VMA of private pages.
    #[must_use]
    pub fn own(start: u64, end: u64, protection: Protection) -> Self {
        Self {
            start,
            end,
            protection,
            object: None,
            flags: VmaFlags::empty(),
        }
    }

    fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether two VMAs differ only in their addresses.
    fn can_merge(&self, other: &Self) -> bool {
        (self.protection, self.object, self.flags) == (other.protection, other.object, other.flags)
    }
}

/// The VMAs of a program.
#[derive(Debug, Default)]
pub struct VmaMap {
    by_start: BTreeMap<u64, Vma>,
    bytes: u64,
    /// Number of VMAs that map each shared-memory object.
    object_vmas: BTreeMap<u64, u32>,
    gap_cache: GapCache,
}

/// Result of the last search for a gap, so that the next one can continue from there.
#[derive(Clone, Copy, Debug, Default)]
struct GapCache {
    /// Bounds of that search; nothing is known for others.
    bounds: (u64, u64),
    /// No gap that ends above this is larger than `largest`.
    below: u64,
    largest: u64,
}

impl VmaMap {
    /// Returns the VMA that contains an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Vma> {
        let (_, vma) = self.by_start.range(..=address).next_back()?;
        (address < vma.end).then_some(*vma)
    }

    /// Returns the VMAs that overlap a range, whole.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Vma> + '_ {
        let holding = self.find(start).filter(|_| start < end);
        let first = holding.map_or(start, |vma| vma.start);
        let found = self.by_start.range(first..end.max(first));
        found.map(|(_, vma)| *vma)
    }

    /// Returns the parts of VMAs within a range.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Vma> + '_ {
        self.overlapping(start, end).map(move |vma| Vma {
            start: vma.start.max(start),
            end: vma.end.min(end),
            ..vma
        })
    }

    /// Returns the first part within a range.
    #[must_use]
    pub fn first_within(&self, start: u64, end: u64) -> Option<Vma> {
        self.within(start, end).next()
    }

    /// Returns the first VMA that starts at or after an address.
    #[must_use]
    pub fn next(&self, address: u64) -> Option<Vma> {
        self.by_start.range(address..).next().map(|(_, vma)| *vma)
    }

    /// Whether VMAs cover a range without a gap.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let mut next = start;
        for vma in self.within(start, end) {
            if vma.start != next {
                return false;
            }
            next = vma.end;
        }
        next >= end
    }

    /// Checks that `more` VMAs may be added, and that there is kernel memory for them.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn has_room(&self, more: usize) -> Result<(), Errno> {
        match self.by_start.len() + more <= VMAS_MAX {
            true => Ok(room::has_room(VMA_BYTES * more as u64)?),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Checks that a range can be unmapped, which may split one VMA in two. As unmapping frees
    /// memory, it may use the kernel's reserve.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_unmap(&self, start: u64, end: u64) -> Result<(), Errno> {
        match self.find(start) {
            Some(vma) if vma.start < start && end < vma.end => {
                match self.by_start.len() < VMAS_MAX {
                    true => Ok(room::has_room_to_free(VMA_BYTES)?),
                    false => Err(Errno::ENOMEM),
                }
            }
            _ => Ok(()),
        }
    }

    /// Checks that VMAs can be split at both ends of a range.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_split(&self, start: u64, end: u64) -> Result<(), Errno> {
        let is_within = |&at: &u64| self.find(at).is_some_and(|vma| vma.start < at);
        match [start, end].iter().filter(|at| is_within(at)).count() {
            0 => Ok(()),
            splits => self.has_room(splits),
        }
    }

    /// Removes a range: see [`VmaMap::can_unmap`]. Calls `unmapped_object` with each shared-memory
    /// object that is no longer mapped.
    pub fn remove(&mut self, start: u64, end: u64, unmapped_object: &mut dyn FnMut(u64)) {
        let first = |vmas: &Self| vmas.overlapping(start, end).next();
        while let Some(vma) = first(self) {
            self.take(&vma);
            let left = Vma {
                end: start.max(vma.start),
                ..vma
            };
            let right = Vma {
                start: end.min(vma.end),
                ..vma
            };
            for rest in [left, right] {
                if rest.start < rest.end {
                    self.put(rest);
                }
            }
            if let Some(object) = vma.object
                && !self.object_vmas.contains_key(&object.number)
            {
                unmapped_object(object.number);
            }
        }
        let next = self.next(end).map_or(u64::MAX, |vma| vma.start);
        self.gap_cache.below = self.gap_cache.below.max(next);
    }

    /// Inserts a VMA in place of everything in its range, and merges it with like neighbours. That
    /// adds two VMAs at most: see [`VmaMap::has_room`].
    pub fn insert(&mut self, vma: Vma) {
        self.remove(vma.start, vma.end, &mut |_| {});
        let mut joined = vma;
        let before = self.by_start.range(..vma.start).next_back();
        let before = before.map(|(_, before)| *before);
        for other in [before, self.next(vma.end)].into_iter().flatten() {
            let touches = other.end == joined.start || joined.end == other.start;
            if touches && other.can_merge(&vma) {
                self.take(&other);
                joined.start = joined.start.min(other.start);
                joined.end = joined.end.max(other.end);
            }
        }
        self.put(joined);
    }

    fn put(&mut self, vma: Vma) {
        self.bytes += vma.bytes();
        if let Some(object) = vma.object {
            *self.object_vmas.entry(object.number).or_default() += 1;
        }
        self.by_start.insert(vma.start, vma);
    }

    pub(super) fn take(&mut self, vma: &Vma) {
        self.by_start.remove(&vma.start);
        self.bytes -= vma.bytes();
        let Some(object) = vma.object else {
            return;
        };
        if let Some(count) = self.object_vmas.get_mut(&object.number) {
            *count -= 1;
            if *count == 0 {
                self.object_vmas.remove(&object.number);
            }
        }
    }

    /// Changes the VMAs in a range, which are split at its ends: see [`VmaMap::can_split`].
    pub fn change(&mut self, start: u64, end: u64, change: impl Fn(Vma) -> Vma) {
        let mut next = start;
        while let Some(part) = self.first_within(next, end) {
            next = part.end;
            self.insert(change(part));
        }
    }

    /// Finds the highest aligned gap of a size between `bottom` and `top`.
    #[must_use]
    pub fn find_gap(&mut self, size: u64, alignment: u64, bottom: u64, top: u64) -> Option<u64> {
        let cached = self.gap_cache;
        let is_cached = cached.bounds == (bottom, top) && size > cached.largest;
        let (mut ceiling, mut largest) = match is_cached {
            true => (cached.below.min(top), cached.largest),
            false => (top, 0),
        };
        let below = self.by_start.range(..ceiling).rev();
        let mut floors = below
            .map(|(_, vma)| (vma.end, vma.start))
            .chain([(bottom, 0)]);
        let found = loop {
            let Some((end, next)) = floors.next() else {
                break None;
            };
            let floor = end.max(bottom);
            let start = ceiling.checked_sub(size).map(|at| at & !(alignment - 1));
            if let Some(start) = start.filter(|&at| floor <= at && at < ceiling) {
                break Some(start);
            }
            largest = largest.max(ceiling.saturating_sub(floor));
            ceiling = ceiling.min(next.max(bottom));
        };
        self.gap_cache = GapCache {
            bounds: (bottom, top),
            below: ceiling,
            largest,
        };
        found
    }

    /// Returns the size of all VMAs, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of VMAs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Returns all VMAs, ascending.
    pub fn all(&self) -> impl Iterator<Item = Vma> + '_ {
        self.by_start.values().copied()
    }

    /// Appends a VMA behind all others.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn push(&mut self, vma: Vma) -> Result<(), Errno> {
        self.has_room(1)?;
        self.put(vma);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const PAGE: u64 = 4096;
    const PAGES: u64 = 64;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Insert(u64, u64, u8),
        Remove(u64, u64),
        Protect(u64, u64, u8),
        Gap(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        (0..4, 0..PAGES, 1..=16_u64, 0..8_u8).prop_map(|(kind, start, count, protection)| {
            let end = (start + count).min(PAGES);
            match kind {
                0 => Step::Insert(start, end, protection),
                1 => Step::Remove(start, end),
                2 => Step::Gap(count, 1 << (start % 3)),
                _ => Step::Protect(start, end, protection),
            }
        })
    }

    /// Searches all pages for a gap.
    fn find_gap_in(pages: &[Option<Protection>], size: u64, alignment: u64) -> Option<u64> {
        let free = |at: u64| {
            let pages = &pages[at as usize..(at + size) as usize];
            pages.iter().all(Option::is_none)
        };
        let mut starts = (0..=PAGES - size).rev();
        let found = starts.find(|&at| at.is_multiple_of(alignment) && free(at));
        found.map(|at| at * PAGE)
    }

    proptest! {
        /// The map agrees with an array of pages.
        #[test]
        fn the_map_agrees_with_an_array_of_pages(steps in proptest::collection::vec(step(), 1..40)) {
            let mut vmas = VmaMap::default();
            let mut pages = [None; PAGES as usize];
            for step in steps {
                let protection = Protection::from_bits_truncate;
                match step {
                    Step::Insert(start, end, bits) => {
                        let protection = protection(bits);
                        let (start_at, end_at) = (start * PAGE, end * PAGE);
                        vmas.insert(Vma::own(start_at, end_at, protection));
                        pages[start as usize..end as usize].fill(Some(protection));
                    }
                    Step::Remove(start, end) => {
                        vmas.remove(start * PAGE, end * PAGE, &mut |_| {});
                        pages[start as usize..end as usize].fill(None);
                    }
                    Step::Gap(size, alignment) => {
                        let find_gap = vmas.find_gap(size * PAGE, alignment * PAGE, 0, PAGES * PAGE);
                        prop_assert_eq!(find_gap, find_gap_in(&pages, size, alignment));
                    }
                    Step::Protect(start, end, bits) => {
                        let protection = protection(bits);
                        let change = |vma| Vma { protection, ..vma };
                        vmas.change(start * PAGE, end * PAGE, change);
                        let there = pages[start as usize..end as usize].iter_mut().flatten();
                        there.for_each(|page| *page = protection);
                    }
                }
            }
            for (page, expected) in (0..).zip(pages) {
                let found = vmas.find(page * PAGE + 7).map(|vma| vma.protection);
                prop_assert_eq!(found, expected);
            }
            let sorted: Vec<Vma> = vmas.all().collect();
            for pair in sorted.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
                prop_assert!(pair[0].end < pair[1].start || pair[0].protection != pair[1].protection);
            }
            let bytes = pages.iter().flatten().count() as u64 * PAGE;
            prop_assert_eq!(vmas.bytes(), bytes);
            for size in [1, 3, 9] {
                let find_gap = vmas.find_gap(size * PAGE, PAGE, 0, PAGES * PAGE);
                prop_assert_eq!(find_gap, find_gap_in(&pages, size, 1));
            }
        }
    }

    #[test]
    fn vmas_of_different_objects_are_not_merged() {
        let mut vmas = VmaMap::default();
        let vma = |start, end, object| Vma {
            object,
            ..Vma::own(start, end, Protection::READ)
        };
        let object = |number| Some(ObjectRef { number, base: 0 });
        vmas.insert(vma(0, PAGE, object(1)));
        vmas.insert(vma(PAGE, 2 * PAGE, object(2)));
        vmas.insert(vma(2 * PAGE, 3 * PAGE, None));
        assert_eq!(vmas.count(), 3);
        vmas.insert(vma(PAGE, 2 * PAGE, object(1)));
        assert_eq!(vmas.find(0), Some(vma(0, 2 * PAGE, object(1))));
        let protection = Protection::WRITE;
        vmas.change(0, PAGE, |vma| Vma { protection, ..vma });
        assert_eq!(vmas.find(0).unwrap().object, object(1));
        let mut unmapped_object = Vec::new();
        for end in [PAGE, 3 * PAGE, 3 * PAGE] {
            vmas.remove(0, end, &mut |number| unmapped_object.push(number));
        }
        assert_eq!(unmapped_object, [1]);
    }

    #[test]
    fn the_number_of_vmas_is_limited_as_on_linux() {
        let mut vmas = VmaMap::default();
        let top = 4 * VMAS_MAX as u64 * PAGE;
        for number in 0..VMAS_MAX {
            vmas.has_room(1).unwrap();
            // Alternate, so that neighbours are not merged; each is below all others.
            let protection = [Protection::READ, Protection::WRITE][number % 2];
            let start = vmas.find_gap(PAGE, PAGE, 0, top).unwrap();
            vmas.insert(Vma::own(start, start + PAGE, protection));
        }
        assert_eq!(vmas.count(), VMAS_MAX);
        assert_eq!(vmas.has_room(1), Err(Errno::ENOMEM));
        // Operations that add no VMA still succeed.
        let last = vmas.all().last().unwrap();
        assert_eq!(vmas.can_unmap(last.start, last.end), Ok(()));
        vmas.remove(last.start, last.end, &mut |_| {});
        vmas.insert(Vma::own(
            last.start,
            last.end + 2 * PAGE,
            Protection::empty(),
        ));
        let (start, end) = (last.end, last.end + PAGE);
        assert_eq!(vmas.can_unmap(start, end), Err(Errno::ENOMEM));
        assert_eq!(vmas.can_split(start, end), Err(Errno::ENOMEM));
        assert_eq!(vmas.can_split(last.start, end + PAGE), Ok(()));
    }

    #[test]
    fn a_range_with_a_gap_is_not_covered() {
        let mut vmas = VmaMap::default();
        let vma = Vma::own;
        vmas.insert(vma(PAGE, 2 * PAGE, Protection::READ));
        vmas.insert(vma(2 * PAGE, 3 * PAGE, Protection::WRITE));
        assert!(vmas.covers(PAGE, 3 * PAGE));
        assert!(!vmas.covers(PAGE, 4 * PAGE) && !vmas.covers(0, 2 * PAGE));
    }
}
