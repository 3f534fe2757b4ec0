//! Files mapped privately and written: each process has pages of its own from the first write on, and
//! the file's in all other places, whatever happens to the mapping.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};

use super::mappings::{PAGE, PRIVATE, SHARED, advise, map as map_memory, read, unmap, write};
use super::shared_files::{is_signal, memfd, put_word, unnamed};
use crate::lwk::processes::sharing::start;
use crate::lwk::{Named, ProbeError, call, in_a_child};

const BASE: u64 = 0x36_0000_0000;
const OTHER: u64 = 0x37_0000_0000;
const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const PAGES: u64 = 24;

pub(crate) fn probe() -> Result<(), ProbeError> {
    for (name, file) in [
        ("a file in memory", memfd()?),
        ("a file", unnamed("/var/tmp")?),
    ] {
        println!("{name}: {}", file.set_len(PAGES * PAGE).is_ok());
        for page in 0..PAGES {
            put_word(&file, page, 100 + page)?;
        }
        written(&file)?;
        dropped(&file)?;
        protected(&file)?;
        populated(&file)?;
        moved(&file)?;
        forked(&file)?;
        in_one_memory(&file)?;
        truncated(&file)?;
    }
    over_gaps()
}

fn map(at: u64, protection: u64, more: i32, file: &File) -> Result<u64, Errno> {
    let flags = PRIVATE | (libc::MAP_FIXED | more) as u64;
    let fd = file.as_raw_fd() as u64;
    let arguments = [at, PAGES * PAGE, protection, flags, fd, 0];
    // SAFETY: it replaces only what this probe has mapped.
    unsafe { call(libc::SYS_mmap as u64, arguments) }
}

fn make(number: i64, arguments: [u64; 5]) -> Result<u64, Errno> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: no Rust value is in the ranges that this probe names.
    unsafe { call(number as u64, [a, b, c, d, e, 0]) }
}

fn words(at: u64, pages: impl Iterator<Item = u64>) -> Vec<u64> {
    pages.map(|page| read(at, page)).collect()
}

/// Writes are the program's own, by the program and by calls; all else is the file's, also what is
/// written there later.
fn written(file: &File) -> Result<(), ProbeError> {
    println!("mapped: {:x?}", map(BASE, READ | WRITE, 0, file));
    write(BASE, 2, 1);
    let fd = file.as_raw_fd() as u64;
    let into = make(libc::SYS_pread64, [fd, BASE + 3 * PAGE, 8, 7 * PAGE, 0]);
    for page in 2..6 {
        put_word(file, page, 200 + page)?;
    }
    println!("{into:?}, {:?}", words(BASE, 0..8));
    let out = make(libc::SYS_pwrite64, [fd, BASE + 2 * PAGE, 8, 6 * PAGE, 0]);
    println!("{out:?}, {:?}", words(BASE, 0..8));
    Ok(())
}

/// What is not needed has the file's content again.
fn dropped(file: &File) -> Result<(), ProbeError> {
    println!("dropped: {:?}", advise(BASE, 3, libc::MADV_DONTNEED));
    println!("{:?}", words(BASE, 0..8));
    println!("{:?}", advise(BASE, PAGES, libc::MADV_DONTNEED));
    println!("{:?}", words(BASE, 0..8));
    println!("freed: {:?}", advise(BASE, 1, libc::MADV_FREE));
    write(BASE, 9, 9);
    println!("paged out: {:?}", advise(BASE, PAGES, libc::MADV_PAGEOUT));
    put_word(file, 10, 210)?;
    println!("{:?}", words(BASE, 8..12));
    Ok(())
}

/// What has been written stays when it is protected and again made writable.
fn protected(file: &File) -> Result<(), ProbeError> {
    let protect = |at: u64, protection| make(libc::SYS_mprotect, [at, 8 * PAGE, protection, 0, 0]);
    println!("read only: {:x?}", map(OTHER, READ, 0, file));
    println!("{}, {:?}", read(OTHER, 4), protect(OTHER, READ | WRITE));
    write(OTHER, 4, 4);
    println!("{:?}", protect(OTHER, READ));
    let ended = in_a_child(|| write(OTHER, 4, 5))?;
    let is_denied = is_signal(ended, Signal::SIGSEGV);
    put_word(file, 5, 205)?;
    println!("{is_denied}, {:?}", words(OTHER, 3..7));
    println!(
        "{:?}, {:?}",
        protect(OTHER, 0),
        protect(OTHER, READ | WRITE)
    );
    println!("{:?}, {:?}", words(OTHER, 3..7), unmap(OTHER, PAGES));
    Ok(())
}

/// What is populated to be written is copied at once.
fn populated(file: &File) -> Result<(), ProbeError> {
    let mapped = map(OTHER, READ | WRITE, libc::MAP_POPULATE, file);
    put_word(file, 8, 208)?;
    println!("populated: {mapped:x?}, {}", read(OTHER, 8));
    println!(
        "{:x?}, {}",
        map(OTHER, READ | WRITE, 0, file),
        read(OTHER, 8)
    );
    let advised = advise(OTHER, PAGES, libc::MADV_POPULATE_WRITE);
    put_word(file, 8, 308)?;
    println!("{advised:?}, {}, {:?}", read(OTHER, 8), unmap(OTHER, PAGES));
    Ok(())
}

/// A mapping keeps its pages when it moves, and grows by more of the file.
fn moved(file: &File) -> Result<(), ProbeError> {
    println!("again: {:x?}", map(BASE, READ | WRITE, 0, file));
    write(BASE, 1, 11);
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    let arguments = [BASE, 4 * PAGE, 8 * PAGE, flags, OTHER];
    println!("moved: {:x?}", make(libc::SYS_mremap, arguments));
    println!("{:?}", words(OTHER, 0..8));
    let grown = make(libc::SYS_mremap, [OTHER, 8 * PAGE, 12 * PAGE, 0, 0]);
    println!("grown: {:?}", grown.map(|at| at == OTHER));
    write(OTHER, 10, 12);
    println!("{:?}, {:?}", words(OTHER, 0..12), unmap(OTHER, 12));
    Ok(())
}

/// Parent and child have the same pages until one of them writes.
fn forked(file: &File) -> Result<(), ProbeError> {
    println!("again: {:x?}", map(BASE, READ | WRITE, 0, file));
    write(BASE, 1, 41);
    let ended = in_a_child(|| {
        let is_same = read(BASE, 1) == 41 && read(BASE, 2) == read_word(file, 2);
        write(BASE, 1, 42);
        write(BASE, 2, 43);
        let in_child = in_a_child(|| write(BASE, 1, read(BASE, 1) + 1)).is_ok();
        let is_own = read(BASE, 1) == 42 && read(BASE, 2) == 43;
        // SAFETY: it ends the process, without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(is_same && in_child && is_own)) }
    })?;
    println!("a child: {}", matches!(ended, WaitStatus::Exited(_, 1)));
    println!("{:?}", words(BASE, 0..4));
    write_meanwhile()
}

/// A parent writes while a child lives, which sees what was there at the fork.
fn write_meanwhile() -> Result<(), ProbeError> {
    const TURN: u64 = OTHER;
    map_memory(TURN, 1, SHARED).named("memory for both")?;
    write(BASE, 3, 31);
    // SAFETY: this program has one thread here.
    let child = match unsafe { nix::unistd::fork() }.named("fork")? {
        nix::unistd::ForkResult::Child => {
            while read(TURN, 0) == 0 {
                std::thread::yield_now();
            }
            let is_old = read(BASE, 3) == 31 && read(BASE, 1) == 41;
            // SAFETY: it ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(is_old)) }
        }
        nix::unistd::ForkResult::Parent { child } => child,
    };
    write(BASE, 3, 32);
    write(BASE, 1, 44);
    write(TURN, 0, 1);
    let ended = waitpid(child, None).named("waiting for a child")?;
    let is_old = ended == WaitStatus::Exited(child, 1);
    println!("meanwhile: {is_old}, {:?}", words(BASE, 0..4));
    println!("{:?}", unmap(TURN, 1));
    Ok(())
}

fn read_word(file: &File, page: u64) -> u64 {
    let mut bytes = [0; 8];
    let read = file.read_exact_at(&mut bytes, page * PAGE);
    read.map_or(u64::MAX, |()| u64::from_le_bytes(bytes))
}

/// What a process does that shares the memory of another.
struct Sharer {
    file: u64,
    /// Bits: it has read what the parent wrote; its own write; its call was right or refused.
    done: AtomicU64,
}

/// A process that shares this one's memory sees its pages, and changes them for both.
fn in_one_memory(file: &File) -> Result<(), ProbeError> {
    extern "C" fn body(sharer: *mut c_void) -> c_int {
        // SAFETY: the other process waits until this one has ended.
        let sharer = unsafe { &*sharer.cast::<Sharer>() };
        let mut done = u64::from(read(BASE, 5) == 51);
        write(BASE, 5, 52);
        write(BASE, 6, 61);
        done |= u64::from(read(BASE, 5) == 52 && read(BASE, 6) == 61) << 1;
        let arguments = [sharer.file, BASE + 7 * PAGE, 8, 6 * PAGE, 0];
        let is_right = match make(libc::SYS_pread64, arguments) {
            Ok(_) => read(BASE, 7) == 306,
            Err(error) => error == Errno::EFAULT && write_back(),
        };
        done |= u64::from(is_right) << 2;
        sharer.done.store(done, Ordering::SeqCst);
        0
    }
    put_word(file, 6, 306)?;
    for waits in [true, false] {
        write(BASE, 5, 51);
        let sharer = Sharer {
            file: file.as_raw_fd() as u64,
            done: AtomicU64::new(0),
        };
        let child = start(body, &sharer, waits)?;
        let ended = waitpid(child, None).named("waiting for a child")?;
        let is_done = matches!(ended, WaitStatus::Exited(_, 0));
        let done = sharer.done.load(Ordering::SeqCst);
        println!("in one memory: {is_done}, {done}, {:?}", words(BASE, 4..8));
        println!("{:?}", advise(BASE, 8, libc::MADV_DONTNEED));
        println!("{:?}", words(BASE, 4..8));
    }
    Ok(())
}

/// Writes what a call should have read.
fn write_back() -> bool {
    write(BASE, 7, 306);
    true
}

/// Behind the file's end is no page, not even one that was written.
fn truncated(file: &File) -> Result<(), ProbeError> {
    write(BASE, 20, 20);
    println!("cut: {}", file.set_len(18 * PAGE).is_ok());
    for page in [20, 21] {
        let ended = in_a_child(|| write(BASE, page, 1))?;
        println!("behind its end: {}", is_signal(ended, Signal::SIGBUS));
    }
    println!("grown: {}", file.set_len(PAGES * PAGE).is_ok());
    println!("{:?}, {:?}", words(BASE, 16..22), unmap(BASE, PAGES));
    Ok(())
}

/// Advice takes effect on both sides of a gap.
fn over_gaps() -> Result<(), ProbeError> {
    let file = memfd()?;
    println!("sized: {}", file.set_len(PAGES * PAGE).is_ok());
    for kind in ["memory", "shared memory", "a file"] {
        let mapped = match kind {
            "memory" => map_memory(BASE, 8, PRIVATE),
            "shared memory" => map_memory(BASE, 8, SHARED),
            _ => map(BASE, READ | WRITE, 0, &file),
        };
        println!("{kind}: {mapped:x?}, {:?}", unmap(BASE + 3 * PAGE, 2));
        for page in [0, 1, 5, 6] {
            write(BASE, page, 1);
        }
        println!("{:?}", advise(BASE + PAGE, 6, libc::MADV_DONTNEED));
        println!("{:?}", words(BASE, [0, 1, 5, 6].into_iter()));
        println!("{:?}", advise(BASE, 8, libc::MADV_POPULATE_WRITE));
        println!("{:?}", advise(BASE, 8, libc::MADV_DONTFORK));
        for page in [1, 6] {
            let ended = in_a_child(|| write(BASE, page, 1))?;
            println!("excluded: {}", is_signal(ended, Signal::SIGSEGV));
        }
        println!(
            "nothing: {:?}",
            advise(BASE + 3 * PAGE, 2, libc::MADV_WILLNEED)
        );
        println!(
            "{:?}, {:?}",
            advise(BASE + 3 * PAGE, 2, 77),
            unmap(BASE, PAGES)
        );
    }
    Ok(())
}
