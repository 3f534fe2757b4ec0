//! What of a program's addresses is in use: areas, ascending, none overlapping another.
//!
//! Pure: it knows nothing of frames and page tables.

use alloc::collections::BTreeMap;

use bitflags::bitflags;

use super::errno::Errno;

/// Most areas of a program: Linux' usual `vm.max_map_count`.
pub const AREAS_MAX: usize = 65_530;
/// Bytes of the kernel's that one more area may take.
const AREA_BYTES: u64 = 4096;

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

bitflags! {
    /// What else is to be known of an area.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AreaFlags: u8 {
        /// A copy of the process finds zeros there (`MADV_WIPEONFORK`).
        const WIPE_ON_FORK = 1;
        /// A copy of the process has nothing there (`MADV_DONTFORK`).
        const DONT_FORK = 2;
        /// A core file does not have its content (`MADV_DONTDUMP`).
        const DONT_DUMP = 4;
        /// Its pages were filled with a file's content.
        const FILE = 8;
        /// Of a file's content: the program may have changed it.
        const MAY_DIFFER = 16;
        /// It lies behind the end of the file that it is to show: nothing can be accessed there.
        const PAST_END = 32;
        /// It shows what is not the program's to write, whatever rights it asks for.
        const NEVER_WRITABLE = 64;
        /// It is the mapping of a file.
        const OF_FILE = Self::FILE.bits() | Self::PAST_END.bits();
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
    /// See there.
    pub flags: AreaFlags,
}

impl Area {
    /// One of the program's own pages.
    #[must_use]
    pub fn own(start: u64, end: u64, rights: Rights) -> Self {
        Self {
            start,
            end,
            rights,
            share: None,
            flags: AreaFlags::empty(),
        }
    }

    fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Whether nothing but its addresses tells it from another.
    fn is_alike(&self, other: &Self) -> bool {
        (self.rights, self.share, self.flags) == (other.rights, other.share, other.flags)
    }
}

/// All areas of a program.
#[derive(Debug, Default)]
pub struct Areas {
    by_start: BTreeMap<u64, Area>,
    bytes: u64,
    /// How many areas show each of the memories that several programs may have.
    shown: BTreeMap<u64, u32>,
    searched: Searched,
}

/// What the last search for a free range has found out, so that the next one need not begin anew.
#[derive(Clone, Copy, Debug, Default)]
struct Searched {
    /// Between which addresses was searched; of other bounds nothing is known.
    bounds: (u64, u64),
    /// No free range that ends above this has more bytes than `largest`.
    below: u64,
    largest: u64,
}

impl Areas {
    /// The area that holds an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Area> {
        let (_, area) = self.by_start.range(..=address).next_back()?;
        (address < area.end).then_some(*area)
    }

    /// All areas that have an address in a range, whole.
    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Area> + '_ {
        let holding = self.find(start).filter(|_| start < end);
        let first = holding.map_or(start, |area| area.start);
        let found = self.by_start.range(first..end.max(first));
        found.map(|(_, area)| *area)
    }

    /// The parts of areas that lie in a range.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Area> + '_ {
        self.overlapping(start, end).map(move |area| Area {
            start: area.start.max(start),
            end: area.end.min(end),
            ..area
        })
    }

    /// The first of these parts.
    #[must_use]
    pub fn first_within(&self, start: u64, end: u64) -> Option<Area> {
        self.within(start, end).next()
    }

    /// The first area that begins at or after an address.
    #[must_use]
    pub fn next(&self, address: u64) -> Option<Area> {
        self.by_start.range(address..).next().map(|(_, area)| *area)
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

    /// Whether there may be so many more areas, and memory of the kernel's for them.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_hold(&self, more: usize) -> Result<(), Errno> {
        match self.by_start.len() + more <= AREAS_MAX {
            true => crate::memory::has_room(AREA_BYTES * more as u64),
            false => Err(Errno::ENOMEM),
        }
    }

    /// Whether a range can be taken out: if that makes two of one area there is one more. Memory for
    /// it there is also where programs get no more of it: it is to become free.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_remove(&self, start: u64, end: u64) -> Result<(), Errno> {
        match self.find(start) {
            Some(area) if area.start < start && end < area.end => {
                match self.by_start.len() < AREAS_MAX {
                    true => crate::memory::has_room_to_free(AREA_BYTES),
                    false => Err(Errno::ENOMEM),
                }
            }
            _ => Ok(()),
        }
    }

    /// Whether areas may begin and end at both ends of a range, where they do not yet: each is cut in
    /// two there.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn can_cut(&self, start: u64, end: u64) -> Result<(), Errno> {
        let is_within = |&at: &u64| self.find(at).is_some_and(|area| area.start < at);
        match [start, end].iter().filter(|at| is_within(at)).count() {
            0 => Ok(()),
            cuts => self.can_hold(cuts),
        }
    }

    /// Takes a range out: see [`Areas::can_remove`]. `unshown` is told of each memory that no area
    /// shows any more.
    pub fn remove(&mut self, start: u64, end: u64, unshown: &mut dyn FnMut(u64)) {
        let first = |areas: &Self| areas.overlapping(start, end).next();
        while let Some(area) = first(self) {
            self.take(&area);
            let left = Area {
                end: start.max(area.start),
                ..area
            };
            let right = Area {
                start: end.min(area.end),
                ..area
            };
            for rest in [left, right] {
                if rest.start < rest.end {
                    self.put(rest);
                }
            }
            if let Some(share) = area.share
                && !self.shown.contains_key(&share.memory)
            {
                unshown(share.memory);
            }
        }
        let next = self.next(end).map_or(u64::MAX, |area| area.start);
        self.searched.below = self.searched.below.max(next);
    }

    /// Puts an area in the place of all that lies there, and joins it with neighbours that are alike.
    /// That makes two areas more at most: see [`Areas::can_hold`].
    pub fn insert(&mut self, area: Area) {
        self.remove(area.start, area.end, &mut |_| {});
        let mut joined = area;
        let before = self.by_start.range(..area.start).next_back();
        let before = before.map(|(_, before)| *before);
        for other in [before, self.next(area.end)].into_iter().flatten() {
            let touches = other.end == joined.start || joined.end == other.start;
            if touches && other.is_alike(&area) {
                self.take(&other);
                joined.start = joined.start.min(other.start);
                joined.end = joined.end.max(other.end);
            }
        }
        self.put(joined);
    }

    fn put(&mut self, area: Area) {
        self.bytes += area.bytes();
        if let Some(share) = area.share {
            *self.shown.entry(share.memory).or_default() += 1;
        }
        self.by_start.insert(area.start, area);
    }

    fn take(&mut self, area: &Area) {
        self.by_start.remove(&area.start);
        self.bytes -= area.bytes();
        let Some(share) = area.share else {
            return;
        };
        if let Some(count) = self.shown.get_mut(&share.memory) {
            *count -= 1;
            if *count == 0 {
                self.shown.remove(&share.memory);
            }
        }
    }

    /// Changes the areas in a range, which are cut at its ends: see [`Areas::can_cut`].
    pub fn change(&mut self, start: u64, end: u64, change: impl Fn(Area) -> Area) {
        let mut next = start;
        while let Some(part) = self.first_within(next, end) {
            next = part.end;
            self.insert(change(part));
        }
    }

    /// The highest free range of that size from `bottom` to `top`, aligned.
    #[must_use]
    pub fn gap(&mut self, size: u64, alignment: u64, bottom: u64, top: u64) -> Option<u64> {
        let known = self.searched;
        let is_known = known.bounds == (bottom, top) && size > known.largest;
        let (mut ceiling, mut largest) = match is_known {
            true => (known.below.min(top), known.largest),
            false => (top, 0),
        };
        let below = self.by_start.range(..ceiling).rev();
        let mut floors = below
            .map(|(_, area)| (area.end, area.start))
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
        self.searched = Searched {
            bounds: (bottom, top),
            below: ceiling,
            largest,
        };
        found
    }

    /// Bytes of all areas.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.by_start.len()
    }

    /// All areas, ascending.
    pub fn all(&self) -> impl Iterator<Item = Area> + '_ {
        self.by_start.values().copied()
    }

    /// Adds an area to a copy, behind all others.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn push(&mut self, area: Area) -> Result<(), Errno> {
        self.can_hold(1)?;
        self.put(area);
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
        (0..4, 0..PAGES, 1..=16_u64, 0..8_u8).prop_map(|(kind, start, count, rights)| {
            let end = (start + count).min(PAGES);
            match kind {
                0 => Step::Insert(start, end, rights),
                1 => Step::Remove(start, end),
                2 => Step::Gap(count, 1 << (start % 3)),
                _ => Step::Protect(start, end, rights),
            }
        })
    }

    /// As a search of all pages finds it.
    fn gap_of(pages: &[Option<Rights>], size: u64, alignment: u64) -> Option<u64> {
        let free = |at: u64| {
            let pages = &pages[at as usize..(at + size) as usize];
            pages.iter().all(Option::is_none)
        };
        let mut starts = (0..=PAGES - size).rev();
        let found = starts.find(|&at| at.is_multiple_of(alignment) && free(at));
        found.map(|at| at * PAGE)
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
                        areas.insert(Area::own(start_at, end_at, rights));
                        pages[start as usize..end as usize].fill(Some(rights));
                    }
                    Step::Remove(start, end) => {
                        areas.remove(start * PAGE, end * PAGE, &mut |_| {});
                        pages[start as usize..end as usize].fill(None);
                    }
                    Step::Gap(size, alignment) => {
                        let gap = areas.gap(size * PAGE, alignment * PAGE, 0, PAGES * PAGE);
                        prop_assert_eq!(gap, gap_of(&pages, size, alignment));
                    }
                    Step::Protect(start, end, bits) => {
                        let rights = rights(bits);
                        let change = |area| Area { rights, ..area };
                        areas.change(start * PAGE, end * PAGE, change);
                        let there = pages[start as usize..end as usize].iter_mut().flatten();
                        there.for_each(|page| *page = rights);
                    }
                }
            }
            for (page, expected) in (0..).zip(pages) {
                let found = areas.find(page * PAGE + 7).map(|area| area.rights);
                prop_assert_eq!(found, expected);
            }
            let sorted: Vec<Area> = areas.all().collect();
            for pair in sorted.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
                prop_assert!(pair[0].end < pair[1].start || pair[0].rights != pair[1].rights);
            }
            let bytes = pages.iter().flatten().count() as u64 * PAGE;
            prop_assert_eq!(areas.bytes(), bytes);
            for size in [1, 3, 9] {
                let gap = areas.gap(size * PAGE, PAGE, 0, PAGES * PAGE);
                prop_assert_eq!(gap, gap_of(&pages, size, 1));
            }
        }
    }

    #[test]
    fn what_shows_other_memory_is_another_area() {
        let mut areas = Areas::default();
        let area = |start, end, share| Area {
            share,
            ..Area::own(start, end, Rights::READ)
        };
        let share = |memory| Some(Share { memory, base: 0 });
        areas.insert(area(0, PAGE, share(1)));
        areas.insert(area(PAGE, 2 * PAGE, share(2)));
        areas.insert(area(2 * PAGE, 3 * PAGE, None));
        assert_eq!(areas.count(), 3);
        areas.insert(area(PAGE, 2 * PAGE, share(1)));
        assert_eq!(areas.find(0), Some(area(0, 2 * PAGE, share(1))));
        let rights = Rights::WRITE;
        areas.change(0, PAGE, |area| Area { rights, ..area });
        assert_eq!(areas.find(0).unwrap().share, share(1));
        let mut unshown = Vec::new();
        for end in [PAGE, 3 * PAGE, 3 * PAGE] {
            areas.remove(0, end, &mut |memory| unshown.push(memory));
        }
        assert_eq!(unshown, [1]);
    }

    #[test]
    fn there_are_as_many_as_on_linux() {
        let mut areas = Areas::default();
        let top = 4 * AREAS_MAX as u64 * PAGE;
        for number in 0..AREAS_MAX {
            areas.can_hold(1).unwrap();
            // Alternately, so that none is joined with the next; each below all others.
            let rights = [Rights::READ, Rights::WRITE][number % 2];
            let start = areas.gap(PAGE, PAGE, 0, top).unwrap();
            areas.insert(Area::own(start, start + PAGE, rights));
        }
        assert_eq!(areas.count(), AREAS_MAX);
        assert_eq!(areas.can_hold(1), Err(Errno::ENOMEM));
        // What makes no more of them can be done.
        let last = areas.all().last().unwrap();
        assert_eq!(areas.can_remove(last.start, last.end), Ok(()));
        areas.remove(last.start, last.end, &mut |_| {});
        areas.insert(Area::own(last.start, last.end + 2 * PAGE, Rights::empty()));
        let (start, end) = (last.end, last.end + PAGE);
        assert_eq!(areas.can_remove(start, end), Err(Errno::ENOMEM));
        assert_eq!(areas.can_cut(start, end), Err(Errno::ENOMEM));
        assert_eq!(areas.can_cut(last.start, end + PAGE), Ok(()));
    }

    #[test]
    fn a_range_is_covered_without_holes() {
        let mut areas = Areas::default();
        let area = Area::own;
        areas.insert(area(PAGE, 2 * PAGE, Rights::READ));
        areas.insert(area(2 * PAGE, 3 * PAGE, Rights::WRITE));
        assert!(areas.covers(PAGE, 3 * PAGE));
        assert!(!areas.covers(PAGE, 4 * PAGE) && !areas.covers(0, 2 * PAGE));
    }
}
