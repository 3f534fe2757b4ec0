//! Tests of VMAs.

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

/// Only private base mappings that can be written differ from proxy to proxy.
#[test]
fn what_is_written_privately_is_in_one_proxy() {
    let writable = Protection::READ | Protection::WRITE;
    let cases = [
        (VmaFlags::BASE, writable, true),
        (VmaFlags::BASE | VmaFlags::DONT_FORK, writable, true),
        (VmaFlags::BASE, Protection::READ, false),
        (VmaFlags::BASE | VmaFlags::SHARED, writable, false),
        (VmaFlags::FILE_COPY, writable, false),
        (VmaFlags::empty(), writable, false),
    ];
    for (flags, protection, wanted) in cases {
        let vma = Vma {
            flags,
            ..Vma::own(0, PAGE, protection)
        };
        assert_eq!(vma.is_in_one_proxy(), wanted, "{flags:?}");
    }
}

#[test]
fn locked_bytes_are_those_of_locked_vmas() {
    let mut map = VmaMap::default();
    map.insert(Vma::own(0, 8 * PAGE, Protection::READ));
    let lock = |vma: Vma| Vma {
        flags: vma.flags | VmaFlags::LOCKED,
        ..vma
    };
    map.change(2 * PAGE, 6 * PAGE, lock);
    assert_eq!((map.locked_bytes(), map.count()), (4 * PAGE, 3));
    map.remove(0, 3 * PAGE, &mut |_| {});
    assert_eq!(map.locked_bytes(), 3 * PAGE);
    map.insert(Vma::own(5 * PAGE, 8 * PAGE, Protection::READ));
    assert_eq!(map.locked_bytes(), 2 * PAGE);
}
