//! Huge pages: files of hugetlbfs, and MAP_HUGETLB.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::WaitStatus;

use crate::lwk::{ProbeError, call, in_a_child};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
/// Addresses that nothing else uses.
const BASE: u64 = 0x20_0000_0000;

/// Plays with a new file in a folder of hugetlbfs.
pub(crate) fn probe(folder: &str) -> Result<(), ProbeError> {
    let path = format!("{folder}/file.{}", std::process::id());
    let mut options = OpenOptions::new();
    let wrong = |error: std::io::Error| ProbeError::Wrong(format!("{path}: {error}"));
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .map_err(wrong)?;
    std::fs::remove_file(&path).map_err(wrong)?;
    let number = file.as_raw_fd() as u64;
    println!(
        "{:?}",
        make(libc::SYS_ftruncate, [number, 2 * HUGE, 0, 0, 0, 0])
    );
    shared(number)?;
    private(number)?;
    parts(number);
    anonymous();
    Ok(())
}

/// Makes a call on memory that no Rust value is in.
fn make(number: i64, arguments: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: it concerns a file, or addresses above BASE.
    unsafe { call(number.cast_unsigned(), arguments) }
}

fn map(start: u64, size: u64, flags: i32, file: u64) -> Result<u64, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (flags | libc::MAP_FIXED) as u64;
    make(libc::SYS_mmap, [start, size, protection, flags, file, 0]).map(|at| at - start)
}

fn unmap(start: u64, size: u64) -> Result<u64, Errno> {
    make(libc::SYS_munmap, [start, size, 0, 0, 0, 0])
}

/// A word of each 64 KiB.
fn places(start: u64, size: u64) -> impl Iterator<Item = *mut u64> {
    let words = (start..start + size).step_by(64 << 10);
    words.map(|at| std::ptr::with_exposed_provenance_mut(at as usize))
}

fn fill(start: u64, size: u64, value: u64) {
    // SAFETY: the caller has mapped it for writing.
    places(start, size).for_each(|place| unsafe { place.write_volatile(value) });
}

fn sum(start: u64, size: u64) -> u64 {
    // SAFETY: the caller has mapped it.
    places(start, size)
        .map(|place| unsafe { place.read_volatile() })
        .sum()
}

fn is_good(status: WaitStatus) -> bool {
    matches!(status, WaitStatus::Exited(_, 0))
}

fn shared(file: u64) -> Result<(), ProbeError> {
    println!("shared: {:?}", map(BASE, 2 * HUGE, libc::MAP_SHARED, file));
    println!("{:?}", map(BASE + 4 * HUGE, HUGE, libc::MAP_SHARED, file));
    fill(BASE, 2 * HUGE, 3);
    println!("{} {}", sum(BASE, 2 * HUGE), sum(BASE + 4 * HUGE, HUGE));
    let ended = in_a_child(|| fill(BASE + 4 * HUGE, HUGE, 5))?;
    println!("{} {}", is_good(ended), sum(BASE, 2 * HUGE));
    let discard = [BASE, HUGE, libc::MADV_DONTNEED as u64, 0, 0, 0];
    println!(
        "{:?} {}",
        make(libc::SYS_madvise, discard),
        sum(BASE, 2 * HUGE)
    );
    println!(
        "{:?} {:?}",
        unmap(BASE, 2 * HUGE),
        unmap(BASE + 4 * HUGE, HUGE)
    );
    Ok(())
}

fn private(file: u64) -> Result<(), ProbeError> {
    println!(
        "private: {:?} {}",
        map(BASE, HUGE, libc::MAP_PRIVATE, file),
        sum(BASE, HUGE)
    );
    fill(BASE, HUGE, 7);
    println!("{:?}", map(BASE + 4 * HUGE, HUGE, libc::MAP_SHARED, file));
    println!("{} {}", sum(BASE, HUGE), sum(BASE + 4 * HUGE, HUGE));
    let ended = in_a_child(|| println!("child: {}", sum(BASE, HUGE)))?;
    println!("{}", is_good(ended));
    println!("{:?} {:?}", unmap(BASE, HUGE), unmap(BASE + 4 * HUGE, HUGE));
    Ok(())
}

/// What is not whole huge pages is refused, or harms nothing beside it.
fn parts(file: u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    println!("beside: {:?}", map(BASE + PAGE, PAGE, flags, u64::MAX));
    fill(BASE + PAGE, PAGE, 9);
    println!(
        "not aligned: {:?}",
        map(BASE + 8 * PAGE, HUGE, libc::MAP_SHARED, file)
    );
    println!("{}", sum(BASE + PAGE, PAGE));
    println!(
        "{:?} {:?}",
        unmap(BASE, HUGE),
        map(BASE, HUGE, libc::MAP_SHARED, file)
    );
    // Linux 6.1 tells a caller of its own, as the mirror is, ENOMEM.
    println!("unmap a part: {}", unmap(BASE + PAGE, PAGE).is_err());
    println!("{}", sum(BASE, HUGE));
    println!("{:?}", unmap(BASE, HUGE));
}

fn anonymous() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
    println!("anonymous: {:?}", map(BASE, HUGE, flags, u64::MAX));
    fill(BASE, HUGE, 11);
    println!("{} {:?}", sum(BASE, HUGE), unmap(BASE, HUGE));
    println!("not aligned: {:?}", map(BASE + PAGE, HUGE, flags, u64::MAX));
    println!("rounded: {:?}", map(BASE, PAGE, flags, u64::MAX));
    fill(BASE, HUGE, 13);
    println!("{} {:?}", sum(BASE, HUGE), unmap(BASE, HUGE));
}
