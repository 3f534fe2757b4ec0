//! Files that are mapped while they are written, cut and deleted.

#![allow(
    unsafe_code,
    reason = "mapped pages are used by address, as programs do"
)]

use std::slice;

use super::cached::Cached;
use super::calls::{Calls, Outcome, Step};
use super::served::Served;
use crate::files::{FileSystem, Files, Memory};

const PAGE: usize = 4096;
const MAPPING: u64 = 77;

type Mapped<F> = Served<Cached<Files<F>>>;

/// A file of so many bytes, each 7, that is open.
fn file<F: FileSystem>(system: F, size: usize) -> (Mapped<F>, u64) {
    let mut served = Served::cached(system);
    served.play(&Step::Open("a".into(), 2, 1));
    served.play(&Step::Write(0, size, 7));
    let inode = served.inode("a").unwrap();
    (served, inode)
}

/// Returns a page, if the kernel knows it.
pub(crate) fn page<F: FileSystem>(
    served: &mut Mapped<F>,
    inode: u64,
    number: u64,
) -> Option<&mut [u8]> {
    let address = *served.mapped().get(&(inode, number))?;
    // SAFETY: it is mapped, and nobody else uses it in this test meanwhile.
    Some(unsafe { slice::from_raw_parts_mut(address as *mut u8, PAGE) })
}

/// Plays all on file systems that `new` makes: empty ones.
pub(crate) fn play<F: FileSystem>(new: impl Fn() -> F) {
    stores_and_writes_meet(new());
    a_file_grows_and_shrinks(new());
    a_mapping_keeps_the_file(new());
    stores_change_the_time(new());
    mappings_change_no_time(new());
    a_later_mapping_grows(new());
    drop(is_right_after_random_calls(new(), 1500));
}

fn stores_and_writes_meet(system: impl FileSystem) {
    let (mut served, inode) = file(system, 6000);
    let mapped = served.map(0, MAPPING, (0, 5 * PAGE as u64));
    assert_eq!(mapped, Outcome::Value(0));
    assert_eq!(served.mapped().len(), 2);
    page(&mut served, inode, 1).unwrap()[..3].fill(9);
    let read = served.play(&Step::ReadAt(0, 4094, 5));
    assert_eq!(read, Outcome::Bytes(vec![7, 7, 9, 9, 9]));
    served.play(&Step::WriteAt(0, 4097, 1, 5));
    assert_eq!(page(&mut served, inode, 1).unwrap()[..4], [9, 5, 9, 7]);
}

fn a_file_grows_and_shrinks(system: impl FileSystem) {
    let (mut served, inode) = file(system, 6000);
    served.map(0, MAPPING, (0, 5 * PAGE as u64));
    // A program stores behind the end.
    page(&mut served, inode, 1).unwrap()[6000 - PAGE] = 1;
    served.play(&Step::WriteAt(0, 10_000, 1, 3));
    assert_eq!(page(&mut served, inode, 2).unwrap()[10_000 - 2 * PAGE], 3);
    let read = served.play(&Step::ReadAt(0, 5999, 2));
    assert_eq!(read, Outcome::Bytes(vec![7, 0]));
    // No further than it is mapped.
    served.play(&Step::Truncate(0, 100_000));
    assert_eq!(served.mapped().len(), 5);
    served.play(&Step::Truncate(0, 10));
    let first = page(&mut served, inode, 0).unwrap();
    assert_eq!((first[9], first[10]), (7, 0));
    let third = page(&mut served, inode, 2).unwrap();
    assert!(third.iter().all(|byte| *byte == 0));
    third.fill(8);
    served.play(&Step::Truncate(0, 3 * PAGE as i64));
    page(&mut served, inode, 2).unwrap()[0] = 4;
    let read = served.play(&Step::ReadAt(0, 2 * PAGE as i64 - 1, 3));
    assert_eq!(read, Outcome::Bytes(vec![0, 4, 0]));
}

fn a_mapping_keeps_the_file(system: impl FileSystem) {
    let mut served = Served::cached(system);
    let empty = served.free_blocks_of_cached();
    served.play(&Step::Open("a".into(), 2, 1));
    served.play(&Step::Write(0, 6000, 7));
    let inode = served.inode("a").unwrap();
    served.map(0, MAPPING, (0, 2 * PAGE as u64));
    served.map(0, MAPPING + 1, (0, PAGE as u64));
    served.play(&Step::Unlink("a".into(), false));
    served.play(&Step::Close(0));
    page(&mut served, inode, 0).unwrap()[0] = 1;
    assert_eq!(served.free_blocks_of_cached(), empty - 2);
    served.unmap(MAPPING);
    assert_eq!(served.free_blocks_of_cached(), empty - 2);
    served.unmap(MAPPING + 1);
    assert_eq!(served.free_blocks_of_cached(), empty);
    assert_eq!(served.unmap(MAPPING), Outcome::Value(0));
}

fn stores_change_the_time(system: impl FileSystem) {
    let (mut served, inode) = file(system, 6000);
    served.play(&Step::Touch("a".into(), 1000));
    served.map(0, MAPPING, (0, 2 * PAGE as u64));
    assert_eq!(served.modified("a"), (1000, 0));
    page(&mut served, inode, 1).unwrap()[0] = 1;
    let stored = served.modified("a");
    assert!(stored.0 > 1_000_000_000);
    assert_eq!(served.modified("a"), stored);
    served.play(&Step::WriteAt(0, 0, 1, 3));
    let written = served.modified("a");
    assert_eq!(served.modified("a"), written);
    served.play(&Step::Touch("a".into(), 1000));
    page(&mut served, inode, 1).unwrap()[0] = 2;
    served.unmap(MAPPING);
    assert!(served.modified("a") >= written);
}

fn mappings_change_no_time(system: impl FileSystem) {
    let (mut served, inode) = file(system, 6000);
    served.play(&Step::Touch("a".into(), 1000));
    served.map_to_read(0, MAPPING, 2 * PAGE as u64);
    served.map(0, MAPPING + 1, (0, 2 * PAGE as u64));
    assert_eq!(served.modified("a"), (1000, 0));
    served.unmap(MAPPING + 1);
    assert_eq!(served.modified("a"), (1000, 0));
    assert_eq!(served.accessed("a"), 1000);
    // A store before another mapping is not missed.
    served.map(0, MAPPING + 2, (0, PAGE as u64));
    page(&mut served, inode, 0).unwrap()[0] = 1;
    served.map(0, MAPPING + 3, (0, 2 * PAGE as u64));
    assert!(served.modified("a").0 > 1_000_000_000);
}

/// Of a file that was cut, and is mapped as far as it has been.
fn a_later_mapping_grows(system: impl FileSystem) {
    let (mut served, inode) = file(system, 10 * PAGE);
    served.map(0, MAPPING, (0, PAGE as u64));
    served.play(&Step::Truncate(0, 2 * PAGE as i64));
    served.map(0, MAPPING, (0, 10 * PAGE as u64));
    assert!(page(&mut served, inode, 5).is_none());
    served.play(&Step::Truncate(0, 10 * PAGE as i64));
    assert_eq!(page(&mut served, inode, 5).unwrap()[0], 0);
    // However far: only what there is has to be zeros.
    served.play(&Step::Truncate(0, 1 << 43));
    served.play(&Step::Truncate(0, 1));
}

/// Writes, cuts, reads and stores at random. Returns the file system, all of whose mappings have ended, and what its
/// file is to be.
pub(crate) fn is_right_after_random_calls<F: FileSystem>(system: F, rounds: usize) -> (F, Vec<u8>) {
    const SIZE: usize = 20 * PAGE;
    let (mut served, inode) = file(system, 1);
    let (mut content, mut random, mut mapping) = (vec![7], 5_usize, MAPPING);
    let mut next = |most: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (random >> 33) % most
    };
    served.map(0, mapping, (0, SIZE as u64));
    for round in 0..rounds {
        let (at, length, byte) = (next(SIZE), 1 + next(9000), next(256) as u8);
        let length = length.min(SIZE - at);
        match next(40) {
            0..3 => {
                served.play(&Step::Truncate(0, at as i64));
                content.resize(at, 0);
            }
            3 => {
                served.play(&Step::Sync(0));
            }
            4 => {
                served.unmap(mapping);
                mapping += 1;
                served.map(0, mapping, (0, SIZE as u64));
            }
            5 => {
                served.play(&Step::Allocate(0, at as i64, length as i64, true));
                let end = content.len().min(at + length);
                content.get_mut(at..end).unwrap_or_default().fill(0);
            }
            6..12 => {
                served.play(&Step::WriteAt(0, at as i64, length, byte));
                content.resize(content.len().max(at + length), 0);
                content[at..at + length].fill(byte);
            }
            12..26 => {
                // Behind the end, too, where the page is there.
                if let Some(page) = page(&mut served, inode, (at / PAGE) as u64) {
                    page[at % PAGE] = byte;
                    if let Some(stored) = content.get_mut(at) {
                        *stored = byte;
                    }
                }
            }
            _ => {
                let end = content.len().min(at + length);
                let expected = content.get(at..end).unwrap_or_default().to_vec();
                let read = served.play(&Step::ReadAt(0, at as i64, length));
                assert_eq!(read, Outcome::Bytes(expected), "round {round}");
            }
        }
    }
    served.unmap(mapping);
    (served.end_cached(), content)
}

#[test]
fn mapped_files_in_memory_are_right() {
    play(|| Memory::new(1 << 20));
}

#[test]
fn what_there_is_no_room_for_is_not_mapped() {
    let mut served = Served::cached(Memory::new(2 * PAGE as u64));
    served.play(&Step::Open("a".into(), 2, 1));
    served.play(&Step::Truncate(0, 3 * PAGE as i64));
    let full = Outcome::Error(nix::libc::ENOSPC);
    assert_eq!(served.map(0, MAPPING, (0, 3 * PAGE as u64)), full);
    let none = Outcome::Error(nix::libc::ENODEV);
    served.play(&Step::Mkdir("d".into()));
    served.play(&Step::Open("d".into(), 0, 0));
    assert_eq!(served.map(1, MAPPING, (0, 1)), none);
    assert_eq!(
        served.map(0, MAPPING, (PAGE as u64, PAGE as u64)),
        Outcome::Value(0)
    );
}
