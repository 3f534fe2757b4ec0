//! Locked memory: what mlock(2), mlockall(2) and MAP_LOCKED do, and the limit on it.

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Uid, setuid};

use crate::lwk::{Named, ProbeError, call, in_a_child};

const PAGE: u64 = 4096;
/// Addresses that nothing else uses.
const BASE: u64 = 0x20_0000_0000;
/// Limit of a program without privilege, in pages.
const PAGES: u64 = 16;
const DONTNEED: u64 = 4;
const FREE: u64 = 8;
const DONTNEED_LOCKED: u64 = 24;
const MLOCK_ONFAULT: u64 = 1;

pub(crate) fn probe() -> Result<(), ProbeError> {
    refused();
    anonymous();
    of_file()?;
    all_and_new()?;
    inherited()?;
    println!("{:?}", in_a_child(|| limited(0))?);
    println!("{:?}", in_a_child(|| limited(PAGES))?);
    Ok(())
}

/// Makes a call on memory that no Rust value is in.
fn make(number: i64, arguments: [u64; 4]) -> Result<u64, Errno> {
    let [a, b, c, d] = arguments;
    // SAFETY: it concerns addresses above BASE, or all memory without changing what it contains.
    unsafe { call(number.cast_unsigned(), [a, b, c, d, 0, 0]) }
}

fn lock(start: u64, pages: u64) -> Result<u64, Errno> {
    make(libc::SYS_mlock, [start, pages * PAGE, 0, 0])
}

fn unlock(start: u64, pages: u64) -> Result<u64, Errno> {
    make(libc::SYS_munlock, [start, pages * PAGE, 0, 0])
}

fn lock_all(flags: i32) -> Result<u64, Errno> {
    make(libc::SYS_mlockall, [flags as u64, 0, 0, 0])
}

fn advise(start: u64, pages: u64, advice: u64) -> Result<u64, Errno> {
    make(libc::SYS_madvise, [start, pages * PAGE, advice, 0])
}

fn map_with(start: u64, pages: u64, flags: i32, file: u64) -> Result<u64, Errno> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (flags | libc::MAP_FIXED) as u64;
    let arguments = [start, pages * PAGE, protection, flags, file, 0];
    // SAFETY: no Rust value is there.
    unsafe { call(libc::SYS_mmap as u64, arguments) }.map(|at| at - start)
}

fn map(start: u64, pages: u64, flags: i32) -> Result<u64, Errno> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    map_with(start, pages, flags, u64::MAX)
}

fn unmap(start: u64, pages: u64) -> Result<u64, Errno> {
    make(libc::SYS_munmap, [start, pages * PAGE, 0, 0])
}

/// Which of four pages are present.
fn present(start: u64) -> Result<[u8; 4], Errno> {
    let mut pages = [0; 4];
    let to = pages.as_mut_ptr().expose_provenance() as u64;
    make(libc::SYS_mincore, [start, 4 * PAGE, to, 0])?;
    Ok(pages.map(|page| page & 1))
}

fn touch(address: u64) {
    let place = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the page is mapped for writing.
    unsafe { place.write_volatile(1) };
}

fn refused() {
    for flags in [0, 4, 8, 9] {
        println!("mlockall {flags}: {:?}", lock_all(flags));
    }
    println!("unmapped: {:?} {:?}", lock(BASE, 1), unlock(BASE, 1));
    println!(
        "overflow: {:?}",
        make(libc::SYS_mlock, [BASE, 0u64.wrapping_sub(PAGE), 0, 0])
    );
    println!("nothing: {:?}", lock(BASE, 0));
    let flags = [BASE, PAGE, 2, 0];
    println!("mlock2: {:?}", make(libc::SYS_mlock2, flags));
}

fn anonymous() {
    println!("{:?} {:?}", map(BASE, 4, 0), present(BASE));
    println!("lock: {:?} {:?}", lock(BASE + PAGE + 7, 1), present(BASE));
    for advice in [DONTNEED, FREE, DONTNEED_LOCKED] {
        let advised = [advise(BASE, 1, advice), advise(BASE + PAGE, 1, advice)];
        println!("advice {advice}: {advised:?} {:?}", present(BASE));
    }
    println!(
        "unlock: {:?} {:?}",
        unlock(BASE, 4),
        advise(BASE, 4, DONTNEED)
    );
    println!("{:?}", present(BASE));
    let on_fault = [BASE, 4 * PAGE, MLOCK_ONFAULT, 0];
    println!(
        "on fault: {:?} {:?}",
        make(libc::SYS_mlock2, on_fault),
        present(BASE)
    );
    touch(BASE);
    println!("{:?} {:?}", present(BASE), advise(BASE, 1, DONTNEED));
    // What is before a gap is locked.
    println!("{:?} {:?}", unlock(BASE, 4), unmap(BASE + 2 * PAGE, 1));
    println!("gap: {:?} {:?}", lock(BASE, 4), advise(BASE, 1, DONTNEED));
    println!("{:?}", advise(BASE + 3 * PAGE, 1, DONTNEED));
    println!("{:?}", unmap(BASE, 4));
    println!(
        "MAP_LOCKED: {:?} {:?}",
        map(BASE, 4, libc::MAP_LOCKED),
        present(BASE)
    );
    println!("{:?} {:?}", advise(BASE, 4, DONTNEED), unmap(BASE, 4));
    let none = [BASE, PAGE, 0, 0];
    println!("{:?} {:?}", map(BASE, 1, 0), make(libc::SYS_mprotect, none));
    println!("inaccessible: {:?} {:?}", lock(BASE, 1), unmap(BASE, 1));
}

fn of_file() -> Result<(), ProbeError> {
    let name = c"locked".as_ptr().expose_provenance() as u64;
    let file = make(libc::SYS_memfd_create, [name, 0, 0, 0]).named("memfd_create")?;
    make(libc::SYS_ftruncate, [file, 4 * PAGE, 0, 0]).named("ftruncate")?;
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        println!("file: {:?}", map_with(BASE, 4, flags, file));
        println!("{:?} {:?}", lock(BASE, 4), present(BASE));
        println!("{:?} {:?}", advise(BASE, 4, DONTNEED), unlock(BASE, 4));
        println!("{:?} {:?}", advise(BASE, 4, DONTNEED), unmap(BASE, 4));
    }
    println!(
        "longer than the file: {:?}",
        map_with(BASE, 6, libc::MAP_SHARED, file)
    );
    println!("{:?} {:?}", lock(BASE, 6), unmap(BASE, 6));
    make(libc::SYS_close, [file, 0, 0, 0])
        .named("close")
        .map(drop)
}

/// What is mapped later is locked, too.
fn all_and_new() -> Result<(), ProbeError> {
    println!("{:?}", map(BASE, 4, 0));
    println!(
        "current: {:?} {:?}",
        lock_all(libc::MCL_CURRENT),
        present(BASE)
    );
    println!("{:?}", advise(BASE, 1, DONTNEED));
    println!(
        "new: {:?} {:?}",
        map(BASE + 8 * PAGE, 4, 0),
        present(BASE + 8 * PAGE)
    );
    println!("future: {:?}", lock_all(libc::MCL_FUTURE));
    println!(
        "{:?} {:?}",
        map(BASE + 8 * PAGE, 4, 0),
        present(BASE + 8 * PAGE)
    );
    let heap = make(libc::SYS_brk, [0; 4])
        .named("brk")?
        .next_multiple_of(PAGE);
    let grown = make(libc::SYS_brk, [heap + 4 * PAGE, 0, 0, 0]).named("brk")?;
    println!("heap: {} {:?}", grown - heap, present(heap));
    println!(
        "{}",
        make(libc::SYS_brk, [heap, 0, 0, 0]).named("brk")? - heap
    );
    let grow = [BASE + 8 * PAGE, 2 * PAGE, 4 * PAGE, 0];
    println!(
        "{:?} {:?}",
        unmap(BASE + 10 * PAGE, 2),
        make(libc::SYS_mremap, grow).is_ok()
    );
    println!("grown: {:?}", present(BASE + 8 * PAGE));
    println!(
        "on fault: {:?}",
        lock_all(libc::MCL_FUTURE | libc::MCL_ONFAULT)
    );
    println!(
        "{:?} {:?}",
        map(BASE + 8 * PAGE, 4, 0),
        present(BASE + 8 * PAGE)
    );
    println!("{:?}", advise(BASE + 8 * PAGE, 1, DONTNEED));
    println!("none: {:?}", make(libc::SYS_munlockall, [0; 4]));
    println!(
        "{:?} {:?}",
        advise(BASE, 1, DONTNEED),
        advise(BASE + 8 * PAGE, 1, DONTNEED)
    );
    println!(
        "{:?} {:?}",
        map(BASE + 8 * PAGE, 4, 0),
        present(BASE + 8 * PAGE)
    );
    println!("{:?}", unmap(BASE, 12));
    Ok(())
}

/// A child's memory is not locked.
fn inherited() -> Result<(), ProbeError> {
    println!(
        "{:?} {:?}",
        map(BASE, 4, 0),
        lock_all(libc::MCL_CURRENT | libc::MCL_FUTURE)
    );
    let ended = in_a_child(|| {
        println!("child: {:?} {:?}", advise(BASE, 4, DONTNEED), present(BASE));
        println!("{:?} {:?}", map(BASE, 4, 0), present(BASE));
    })?;
    println!("{ended:?} {:?}", advise(BASE, 4, DONTNEED));
    println!(
        "{:?} {:?}",
        make(libc::SYS_munlockall, [0; 4]),
        unmap(BASE, 4)
    );
    Ok(())
}

/// What a program without privilege may lock.
fn limited(pages: u64) {
    let limit = [pages * PAGE + 5; 2];
    let at = limit.as_ptr().expose_provenance() as u64;
    let set = make(
        libc::SYS_setrlimit,
        [u64::from(libc::RLIMIT_MEMLOCK), at, 0, 0],
    );
    println!("limit {pages}: {set:?} {:?}", setuid(Uid::from_raw(1000)));
    println!("{:?} {:?}", map(BASE, 32, 0), lock(BASE, PAGES));
    println!("{:?} {:?}", lock(BASE, PAGES), lock(BASE + 1, PAGES));
    println!("{:?} {:?}", unlock(BASE, 1), lock(BASE + PAGES * PAGE, 1));
    println!("{:?}", lock_all(libc::MCL_CURRENT));
    println!(
        "MAP_LOCKED: {:?}",
        map(BASE + 64 * PAGE, 1, libc::MAP_LOCKED)
    );
    println!("{:?}", map(BASE + 64 * PAGE, 4, 0));
    println!("{:?} {:?}", unlock(BASE, 32), lock(BASE + 64 * PAGE, 4));
    let grow = [BASE + 64 * PAGE, 4 * PAGE, 20 * PAGE, 0];
    println!(
        "grow: {:?}",
        make(libc::SYS_mremap, grow).map(|at| at - BASE)
    );
    println!("future: {:?}", lock_all(libc::MCL_FUTURE));
    println!(
        "{:?} {:?}",
        map(BASE + 128 * PAGE, 1, 0),
        map(BASE + 128 * PAGE, 20, 0)
    );
    let heap = make(libc::SYS_brk, [0; 4]).unwrap_or(0);
    let grown = make(libc::SYS_brk, [heap + 20 * PAGE, 0, 0, 0]).unwrap_or(0);
    println!("heap: {}", grown - heap);
}
