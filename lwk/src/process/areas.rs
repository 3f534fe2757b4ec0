//! What of a program's addresses is in use: areas, ascending, none overlapping another.
//!
//! Pure: it knows nothing of frames and page tables.

use alloc::vec::Vec;

use bitflags::bitflags;

bitflags! {
    /// What a program may do with its memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// Read it.
        const READ = 1;
        /// Write it.
        const WRITE = 2;
        /// Execute it.
        const EXECUTE = 4;
    }
}

/// Which memory an area shows, of that which several programs may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Its number.
    pub memory: u64,
    /// The address at which its first page would lie.
    pub base: u64,
}

/// A range of addresses that are used alike. Both ends are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The first address.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
    /// What may be done there.
    pub rights: Rights,
    /// Whose pages these are, if not the program's own.
    pub share: Option<Share>,
}

/// All areas of a program.
#[derive(Clone, Debug, Default)]
pub struct Areas {
    sorted: Vec<Area>,
}

impl Areas {
    /// The area that holds an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Area> {
        let index = self.sorted.partition_point(|area| area.end <= address);
        let area = self.sorted.get(index)?;
        (area.start <= address).then_some(*area)
    }

    /// The parts of areas that lie in a range.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Area> + '_ {
        let first = self.sorted.partition_point(|area| area.end <= start);
        let overlapping = self.sorted[first..]
            .iter()
            .take_while(move |area| area.start < end);
        overlapping.map(move |area| Area {
            start: area.start.max(start),
            end: area.end.min(end),
            ..*area
        })
    }

    /// Whether all of a range is in areas.
    #[must_use]
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let mut next = start;
        for area in self.within(start, end) {
            if area.start != next {
                return false;
            }
            next = area.end;
        }
        next >= end
    }

    /// Takes a range out.
    pub fn remove(&mut self, start: u64, end: u64) {
        let first = self.sorted.partition_point(|area| area.end <= start);
        let last = self.sorted.partition_point(|area| area.start < end);
        if first >= last {
            return;
        }
        let (head, tail) = (self.sorted[first], self.sorted[last - 1]);
        let left = Area { end: start, ..head };
        let right = Area { start: end, ..tail };
        let rests = [left, right]
            .into_iter()
            .filter(|area| area.start < area.end);
        drop(self.sorted.splice(first..last, rests));
    }

    /// Puts an area in the place of all that lies there, and joins it with neighbours that are alike.
    pub fn insert(&mut self, area: Area) {
        self.remove(area.start, area.end);
        let index = self.sorted.partition_point(|other| other.end <= area.start);
        self.sorted.insert(index, area);
        self.join(index);
        if let Some(before) = index.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins an area with the next.
    fn join(&mut self, index: usize) {
        let (Some(&one), Some(&next)) = (self.sorted.get(index), self.sorted.get(index + 1)) else {
            return;
        };
        if one.end == next.start && (one.rights, one.share) == (next.rights, next.share) {
            self.sorted[index].end = next.end;
            self.sorted.remove(index + 1);
        }
    }

    /// Changes what may be done in a range, where there are areas.
    pub fn protect(&mut self, start: u64, end: u64, rights: Rights) {
        let parts: Vec<Area> = self.within(start, end).collect();
        for part in parts {
            self.insert(Area { rights, ..part });
        }
    }

    /// The highest free range of that size from `bottom` to `top`, aligned.
    #[must_use]
    pub fn gap(&self, size: u64, alignment: u64, bottom: u64, top: u64) -> Option<u64> {
        let mut ceiling = top;
        let below = self.sorted.iter().rev().filter(|area| area.start < top);
        for floor in below
            .map(|area| (area.end, area.start))
            .chain([(bottom, 0)])
        {
            let (end, next) = floor;
            let floor = end.max(bottom);
            let start = ceiling.checked_sub(size)? & !(alignment - 1);
            if start >= floor && start < ceiling {
                return Some(start);
            }
            ceiling = ceiling.min(next.max(bottom));
        }
        None
    }

    /// Whether any area shows that memory.
    #[must_use]
    pub fn shows(&self, memory: u64) -> bool {
        let mut shares = self.sorted.iter().filter_map(|area| area.share);
        shares.any(|share| share.memory == memory)
    }

    /// Bytes of all areas.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sorted.iter().map(|area| area.end - area.start).sum()
    }

    /// All areas.
    #[must_use]
    pub fn all(&self) -> &[Area] {
        &self.sorted
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
    }

    fn step() -> impl Strategy<Value = Step> {
        (0..3, 0..PAGES, 1..=16_u64, 0..8_u8).prop_map(|(kind, start, count, rights)| {
            let end = (start + count).min(PAGES);
            match kind {
                0 => Step::Insert(start, end, rights),
                1 => Step::Remove(start, end),
                _ => Step::Protect(start, end, rights),
            }
        })
    }

    proptest! {
        /// As an array of pages would have it.
        #[test]
        fn areas_are_as_pages(steps in proptest::collection::vec(step(), 1..40)) {
            let mut areas = Areas::default();
            let mut pages = [None; PAGES as usize];
            for step in steps {
                let rights = Rights::from_bits_truncate;
                match step {
                    Step::Insert(start, end, bits) => {
                        let rights = rights(bits);
                        let (start_at, end_at) = (start * PAGE, end * PAGE);
                        areas.insert(Area { start: start_at, end: end_at, rights, share: None });
                        pages[start as usize..end as usize].fill(Some(rights));
                    }
                    Step::Remove(start, end) => {
                        areas.remove(start * PAGE, end * PAGE);
                        pages[start as usize..end as usize].fill(None);
                    }
                    Step::Protect(start, end, bits) => {
                        areas.protect(start * PAGE, end * PAGE, rights(bits));
                        let there = pages[start as usize..end as usize].iter_mut().flatten();
                        there.for_each(|page| *page = rights(bits));
                    }
                }
            }
            for (page, expected) in (0..).zip(pages) {
                let found = areas.find(page * PAGE + 7).map(|area| area.rights);
                prop_assert_eq!(found, expected);
            }
            let sorted: Vec<Area> = areas.all().to_vec();
            for pair in sorted.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
                prop_assert!(pair[0].end < pair[1].start || pair[0].rights != pair[1].rights);
            }
            for size in [1, 3, 9] {
                let gap = areas.gap(size * PAGE, PAGE, 0, PAGES * PAGE);
                let free = |at: usize| pages[at..at + size as usize].iter().all(Option::is_none);
                let expected = (0..=(PAGES - size) as usize).rev().find(|&at| free(at));
                prop_assert_eq!(gap, expected.map(|at| at as u64 * PAGE));
            }
        }
    }

    #[test]
    fn what_shows_other_memory_is_another_area() {
        let mut areas = Areas::default();
        let area = |start, end, share| Area {
            start,
            end,
            rights: Rights::READ,
            share,
        };
        let share = |memory| Some(Share { memory, base: 0 });
        areas.insert(area(0, PAGE, share(1)));
        areas.insert(area(PAGE, 2 * PAGE, share(2)));
        areas.insert(area(2 * PAGE, 3 * PAGE, None));
        assert_eq!(areas.all().len(), 3);
        areas.insert(area(PAGE, 2 * PAGE, share(1)));
        assert_eq!(areas.all()[0], area(0, 2 * PAGE, share(1)));
        areas.protect(0, PAGE, Rights::WRITE);
        assert_eq!(areas.find(0).unwrap().share, share(1));
    }

    #[test]
    fn a_range_is_covered_without_holes() {
        let mut areas = Areas::default();
        let area = |start, end, rights| Area {
            start,
            end,
            rights,
            share: None,
        };
        areas.insert(area(PAGE, 2 * PAGE, Rights::READ));
        areas.insert(area(2 * PAGE, 3 * PAGE, Rights::WRITE));
        assert!(areas.covers(PAGE, 3 * PAGE));
        assert!(!areas.covers(PAGE, 4 * PAGE) && !areas.covers(0, 2 * PAGE));
    }
}
