//! Pages that a pipe pins (vmsplice(2)) while the program moves, replaces and unmaps them: the
//! pipe's content does not change, and no other page is lost meanwhile.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use nix::libc;

use crate::lwk::{Named, ProbeError, call};

const PAGE: u64 = 4096;
/// Pages of the largest possible pipe.
const MANY: u64 = 256;
/// Far apart in the address space.
const FIRST: u64 = 0x40_0000_0000;
const SECOND: u64 = 0x41_0000_0000;
const OTHER: u64 = 0x42_0000_0000;
const MARK: u64 = 0x1234_5678_9abc_def0;

/// Runs `rounds` of a MiB each, more than there is memory.
pub(crate) fn probe(rounds: u64) -> Result<(), ProbeError> {
    for goes in [goes_directly, goes_by_another, loses_rights_first] {
        stays_in_pipe(goes)?;
    }
    println!("pinned pages keep their content");
    let (_read, write) = pipe()?;
    map(FIRST, 1)?;
    splice(&write, FIRST, 1)?;
    unmap(FIRST, 1)?;
    (0..rounds).try_for_each(|_| is_read_into())?;
    println!("no other page is lost");
    (0..rounds).try_for_each(|_| comes_back())?;
    println!("and unpinned pages are returned");
    Ok(())
}

/// A page at [`FIRST`] that a pipe pins is unmapped; its frame must not be reused.
fn stays_in_pipe(goes: fn() -> Result<(), ProbeError>) -> Result<(), ProbeError> {
    let (mut read, write) = pipe()?;
    map(FIRST, 1)?;
    fill(FIRST, 1, MARK);
    splice(&write, FIRST, 1)?;
    goes()?;
    map(OTHER, MANY)?;
    fill(OTHER, MANY, !MARK);
    let mut found = [0; PAGE as usize];
    let is_whole = read.read_exact(&mut found).is_ok();
    unmap(OTHER, MANY)?;
    let words = found.as_chunks::<8>().0;
    let is_same = words.iter().all(|&word| u64::from_ne_bytes(word) == MARK);
    let wrong = || ProbeError::Wrong(format!("the pipe has {:x?}", &found[..8]));
    (is_whole && is_same).then_some(()).ok_or_else(wrong)
}

fn goes_directly() -> Result<(), ProbeError> {
    move_away()?;
    unmap(SECOND, 1)
}

/// Maps another page over it, which the base then reads.
fn goes_by_another() -> Result<(), ProbeError> {
    move_away()?;
    map(FIRST, 1)?;
    fill(FIRST, 1, 0);
    let (_read, write) = pipe()?;
    splice(&write, FIRST, 1)?;
    unmap(SECOND, 1)?;
    unmap(FIRST, 1)
}

fn loses_rights_first() -> Result<(), ProbeError> {
    for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
        let arguments = [FIRST, PAGE, protection as u64, 0, 0, 0];
        // SAFETY: no Rust value is there.
        unsafe { call(libc::SYS_mprotect as u64, arguments) }.named("mprotect")?;
    }
    goes_directly()
}

fn move_away() -> Result<(), ProbeError> {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let arguments = [FIRST, PAGE, PAGE, flags, SECOND, 0];
    // SAFETY: neither range has a Rust value.
    unsafe { call(libc::SYS_mremap as u64, arguments) }
        .named("mremap")
        .map(drop)
}

/// Memory that the base has mapped, but that is not pinned.
fn is_read_into() -> Result<(), ProbeError> {
    map(OTHER, MANY)?;
    let zeros = File::open("/dev/zero").map_err(wrong("/dev/zero"))?;
    let arguments = [zeros.as_raw_fd() as u64, OTHER, MANY * PAGE, 0, 0, 0];
    // SAFETY: no Rust value is there.
    let read = unsafe { call(libc::SYS_read as u64, arguments) }.named("read")?;
    unmap(OTHER, MANY)?;
    let wrong = || ProbeError::Wrong(format!("{read} bytes were read"));
    (read == MANY * PAGE).then_some(()).ok_or_else(wrong)
}

/// Memory that is pinned when it is unmapped, and unpinned soon after.
fn comes_back() -> Result<(), ProbeError> {
    let (mut read, write) = pipe()?;
    map(OTHER, MANY)?;
    fill(OTHER, MANY, MARK);
    splice(&write, OTHER, MANY)?;
    unmap(OTHER, MANY)?;
    let mut found = vec![0; (MANY * PAGE) as usize];
    read.read_exact(&mut found).map_err(wrong("the pipe"))?;
    let is_same = found
        .as_chunks::<8>()
        .0
        .iter()
        .all(|&word| u64::from_ne_bytes(word) == MARK);
    let wrong = || ProbeError::Wrong("the pipe has something else".to_owned());
    is_same.then_some(()).ok_or_else(wrong)
}

fn wrong(what: &'static str) -> impl Fn(std::io::Error) -> ProbeError {
    move |error| ProbeError::Wrong(format!("{what}: {error}"))
}

/// Ends of a pipe with room for [`MANY`] pages: for reading, and for writing.
pub(super) fn pipe() -> Result<(File, File), ProbeError> {
    let mut ends = [0; 2];
    // SAFETY: it writes two numbers.
    nix::errno::Errno::result(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })
        .named("pipe")?;
    // SAFETY: both are new, and owned by nobody else.
    let [read, write] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    let size = MANY * PAGE;
    let arguments = [
        write.as_raw_fd() as u64,
        libc::F_SETPIPE_SZ as u64,
        size,
        0,
        0,
        0,
    ];
    // SAFETY: it changes the pipe alone.
    unsafe { call(libc::SYS_fcntl as u64, arguments) }.named("F_SETPIPE_SZ")?;
    Ok((read, write))
}

/// Moves references to the pages into a pipe.
pub(super) fn splice(pipe: &File, at: u64, pages: u64) -> Result<(), ProbeError> {
    let vector = [at, pages * PAGE];
    let vector = vector.as_ptr().expose_provenance() as u64;
    let arguments = [pipe.as_raw_fd() as u64, vector, 1, 0, 0, 0];
    // SAFETY: no Rust value is in these pages, which the pipe reads.
    let taken = unsafe { call(libc::SYS_vmsplice as u64, arguments) }.named("vmsplice")?;
    let wrong = || ProbeError::Wrong(format!("the pipe took {taken} bytes"));
    (taken == pages * PAGE).then_some(()).ok_or_else(wrong)
}

fn map(at: u64, pages: u64) -> Result<(), ProbeError> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let arguments = [at, pages * PAGE, protection, flags, u64::MAX, 0];
    // SAFETY: it replaces nothing.
    unsafe { call(libc::SYS_mmap as u64, arguments) }
        .named("mmap")
        .map(drop)
}

fn unmap(at: u64, pages: u64) -> Result<(), ProbeError> {
    // SAFETY: no Rust value is there.
    unsafe { call(libc::SYS_munmap as u64, [at, pages * PAGE, 0, 0, 0, 0]) }
        .named("munmap")
        .map(drop)
}

fn fill(at: u64, pages: u64, word: u64) {
    let words = at as usize as *mut u64;
    for index in 0..(pages * PAGE / 8) as usize {
        // SAFETY: the caller has mapped it, and no Rust value is in it.
        unsafe { words.add(index).write_volatile(word) };
    }
}
