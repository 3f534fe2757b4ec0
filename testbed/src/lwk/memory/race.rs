//! Memory that is unmapped while a disk is read into it: late data must not reach frames that have
//! been reused.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use crate::lwk::{Named, ProbeError, call};

const SIZE: u64 = 1 << 20;
/// Target of the reads; place of memory that may reuse its frames.
const TARGET: u64 = 0x10_0000_0000;
const OTHER: u64 = 0x20_0000_0000;
const MARK: u64 = 0x1234_5678_9abc_def0;

/// Reads `file` again and again while its target is unmapped `rounds` times.
pub(crate) fn probe(file: &str, rounds: u64) -> Result<(), ProbeError> {
    let path = CString::new(file).map_err(|_| ProbeError::Unknown)?;
    let flags = (libc::O_RDONLY | libc::O_DIRECT) as u64;
    let path = path.as_ptr().expose_provenance() as u64;
    // SAFETY: it reads a string.
    let file = unsafe { call(libc::SYS_open as u64, [path, flags, 0, 0, 0, 0]) }.named("open")?;
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    map(TARGET)?;
    let unmapped = std::thread::scope(|scope| {
        scope.spawn(|| read(file, &over, &reads));
        let unmapped = (0..rounds).try_for_each(|_| once(&reads));
        over.store(true, Ordering::Relaxed);
        unmapped
    });
    unmapped?;
    println!("nothing came late");
    Ok(())
}

fn read(file: u64, over: &AtomicBool, reads: &AtomicU64) {
    while !over.load(Ordering::Relaxed) {
        // SAFETY: it writes to memory without Rust values, or fails where none is mapped.
        let read = unsafe { call(libc::SYS_pread64 as u64, [file, TARGET, SIZE, 0, 0, 0]) };
        if !matches!(read, Ok(_) | Err(Errno::EFAULT)) {
            eprintln!("a read: {read:?}");
            std::process::exit(1);
        }
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

fn once(reads: &AtomicU64) -> Result<(), ProbeError> {
    let before = reads.load(Ordering::Relaxed);
    while reads.load(Ordering::Relaxed) == before {
        std::thread::yield_now();
    }
    // Most likely in the middle of the next read.
    std::thread::sleep(Duration::from_micros(before % 7 * 100));
    unmap(TARGET)?;
    map(OTHER)?;
    let words = OTHER as usize as *mut u64;
    let all = 0..SIZE as usize / size_of::<u64>();
    for at in all.clone() {
        // SAFETY: the mapping is that large, and no Rust value is in it.
        unsafe { words.add(at).write_volatile(MARK) };
    }
    std::thread::sleep(Duration::from_millis(2));
    for at in all {
        // SAFETY: as above.
        if unsafe { words.add(at).read_volatile() } != MARK {
            return Err(ProbeError::Wrong(format!("word {at} was written to late")));
        }
    }
    unmap(OTHER)?;
    map(TARGET)
}

fn map(at: u64) -> Result<(), ProbeError> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
    let arguments = [at, SIZE, protection, flags, u64::MAX, 0];
    // SAFETY: it replaces nothing.
    unsafe { call(libc::SYS_mmap as u64, arguments) }
        .named("mmap")
        .map(drop)
}

fn unmap(at: u64) -> Result<(), ProbeError> {
    // SAFETY: no Rust value is there.
    unsafe { call(libc::SYS_munmap as u64, [at, SIZE, 0, 0, 0, 0]) }
        .named("munmap")
        .map(drop)
}
