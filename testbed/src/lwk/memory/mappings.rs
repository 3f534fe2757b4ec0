//! Memory that grows, moves, loses its pages, and is shared with a child meanwhile.

use nix::errno::Errno;
use nix::libc;

use crate::lwk::{ProbeError, call, in_a_child};

pub(crate) const PAGE: u64 = 4096;
const BASE: u64 = 0x30_0000_0000;
pub(crate) const SHARED: u64 = libc::MAP_SHARED as u64;
pub(crate) const PRIVATE: u64 = libc::MAP_PRIVATE as u64;

pub(crate) fn map(at: u64, pages: u64, kind: u64) -> Result<u64, Errno> {
    let flags = kind | (libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let arguments = [at, pages * PAGE, protection, flags, u64::MAX, 0];
    // SAFETY: it replaces nothing.
    unsafe { call(libc::SYS_mmap as u64, arguments) }
}

pub(crate) fn unmap(at: u64, pages: u64) -> Result<u64, Errno> {
    // SAFETY: no Rust value is there.
    unsafe { call(libc::SYS_munmap as u64, [at, pages * PAGE, 0, 0, 0, 0]) }
}

fn remap(at: u64, pages: [u64; 2], flags: i32, to: u64) -> Result<u64, Errno> {
    let [old, new] = pages.map(|count| count * PAGE);
    // SAFETY: neither range has a Rust value.
    unsafe { call(libc::SYS_mremap as u64, [at, old, new, flags as u64, to, 0]) }
}

pub(crate) fn advise(at: u64, pages: u64, advice: i32) -> Result<u64, Errno> {
    // SAFETY: no Rust value is there.
    unsafe {
        call(
            libc::SYS_madvise as u64,
            [at, pages * PAGE, advice as u64, 0, 0, 0],
        )
    }
}

/// First word of a page.
pub(crate) fn read(at: u64, page: u64) -> u64 {
    // SAFETY: the caller has mapped it.
    unsafe { ((at + page * PAGE) as usize as *const u64).read_volatile() }
}

pub(crate) fn write(at: u64, page: u64, value: u64) {
    // SAFETY: as above.
    unsafe { ((at + page * PAGE) as usize as *mut u64).write_volatile(value) }
}

pub(crate) fn probe() -> Result<(), ProbeError> {
    for kind in [PRIVATE, SHARED] {
        moves(kind)?;
    }
    large_pages()?;
    println!(
        "over: {:?}",
        map(BASE, 1, PRIVATE).and_then(|_| unmap(BASE, 1))
    );
    Ok(())
}

fn moves(kind: u64) -> Result<(), ProbeError> {
    println!("mapped: {:x?}", map(BASE, 8, kind));
    println!("again: {:?}", map(BASE + PAGE, 1, kind));
    (0..8).for_each(|page| write(BASE, page, page + 1));
    let to = BASE + 64 * PAGE;
    println!(
        "grown where it is: {:?}",
        remap(BASE, [8, 12], 0, 0).map(|at| at == BASE)
    );
    println!(
        "shrunk: {:?}",
        remap(BASE, [12, 6], 0, 0).map(|at| at == BASE)
    );
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    println!("moved: {:x?}", remap(BASE + 2 * PAGE, [4, 4], flags, to));
    println!("what was there: {:?}", remap(BASE + 2 * PAGE, [1, 1], 0, 0));
    println!("{:?}", [read(BASE, 1), read(to, 0), read(to, 3)]);
    let child = in_a_child(|| {
        let seen = read(to, 1);
        write(to, 1, 40 + seen);
        // The child ends anyway.
        let _ = unmap(BASE, 2);
    })?;
    let ended = matches!(child, nix::sys::wait::WaitStatus::Exited(_, 0));
    println!("a child: {ended}, {:?}", [read(BASE, 0), read(to, 1)]);
    println!(
        "not needed: {:?}, {}",
        advise(to, 4, libc::MADV_DONTNEED),
        read(to, 1)
    );
    println!("{:?}", [unmap(BASE, 2), unmap(to, 4), unmap(to, 4)]);
    Ok(())
}

/// A large page of which a part changes its protection, and one of which a part moves.
fn large_pages() -> Result<(), ProbeError> {
    const PAGES: u64 = 1024;
    println!("large: {:x?}", map(BASE, PAGES, PRIVATE));
    (0..PAGES).for_each(|page| write(BASE, page, page));
    let middle = BASE + 100 * PAGE;
    let arguments = [middle, PAGE, libc::PROT_READ as u64, 0, 0, 0];
    // SAFETY: no Rust value is there.
    let protected = unsafe { call(libc::SYS_mprotect as u64, arguments) };
    let ended = in_a_child(|| write(BASE, 100, 1))?;
    let killed = matches!(ended, nix::sys::wait::WaitStatus::Signaled(..));
    println!(
        "not to be written: {protected:?}, {killed}, {}",
        read(BASE, 100)
    );
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let to = BASE + 4 * PAGES * PAGE;
    println!(
        "moved: {:x?}",
        remap(BASE + 512 * PAGE, [300, 300], flags, to)
    );
    println!(
        "{:?}",
        [read(to, 0), read(to, 299), read(BASE, 511), read(BASE, 812)]
    );
    let populated = [
        advise(to, 200, libc::MADV_POPULATE_WRITE),
        advise(BASE, 512, libc::MADV_POPULATE_READ),
        advise(BASE, 512, libc::MADV_POPULATE_WRITE),
        advise(BASE, PAGES, libc::MADV_POPULATE_READ),
    ];
    println!("populated: {populated:?}, {}", read(BASE, 200));
    println!("{:?}", [unmap(BASE, PAGES), unmap(to, 300)]);
    Ok(())
}
