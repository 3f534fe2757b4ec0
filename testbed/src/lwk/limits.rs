//! Demands beyond a kernel's limits: they are refused, and other programs do not notice.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::thread;

use nix::errno::Errno;
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, ftruncate, pipe, read};

use super::{Named, ProbeError, call, in_a_child};
use crate::lwk::memory::mappings::{PAGE, PRIVATE, SHARED, advise, map, unmap, write};

const BASE: u64 = 0x30_0000_0000;
const LARGE: u64 = 2 << 20;

/// VMAs without end: Linux's default limit holds.
pub(super) fn areas() -> Result<(), ProbeError> {
    const MOST: u64 = 65_530;
    // VMAs of the program itself and of its stack.
    const OWN: u64 = 200;
    println!("{:x?}", map(BASE, 2 * MOST, PRIVATE));
    let refused = (1..2 * MOST).step_by(2).find_map(|page| {
        let arguments = [BASE + page * PAGE, PAGE, libc::PROT_READ as u64, 0, 0, 0];
        // SAFETY: no Rust value is there.
        let protected = unsafe { call(libc::SYS_mprotect as u64, arguments) };
        protected.err().map(|error| (page, error))
    });
    // Each round makes two more VMAs.
    let in_time = refused.is_some_and(|(page, _)| (MOST - OWN..=MOST).contains(&page));
    println!("refused: {in_time}, {:?}", refused.map(|(_, error)| error));
    println!("all: {:?}", unmap(BASE, 2 * MOST));
    let mapped = (0..MOST).filter(|page| map(BASE + 2 * page * PAGE, 1, PRIVATE).is_ok());
    println!(
        "one by one: {}",
        (MOST - OWN..=MOST).contains(&(mapped.count() as u64))
    );
    println!("{:?}", unmap(BASE, 2 * MOST));
    Ok(())
}

/// On a node: memory to the last page, then calls that take kernel memory; page tables and processes
/// without end; many threads.
pub(super) fn all() -> Result<(), ProbeError> {
    let memory = nix::sys::sysinfo::sysinfo().named("sysinfo")?;
    println!("memory: {} MiB", memory.ram_total() >> 20);
    let full = in_a_child(full)?;
    ended_well("a program with all memory", full)?;
    large_file()?;
    let sparse = in_a_child(sparse)?;
    let killed = matches!(sparse, WaitStatus::Signaled(_, Signal::SIGKILL, _));
    println!("page tables without end: killed {killed}");
    let threads = in_a_child(threads)?;
    ended_well("a program with many threads", threads)?;
    processes()
}

fn ended_well(who: &str, ended: WaitStatus) -> Result<(), ProbeError> {
    match ended {
        WaitStatus::Exited(_, 0) => {
            println!("{who} has ended");
            Ok(())
        }
        other => Err(ProbeError::Wrong(format!("{who}: {other:?}"))),
    }
}

/// Takes all memory, then makes calls that need more.
fn full() {
    const PAGES: u64 = (1 << 30) / PAGE;
    let program = Program::new();
    // Printing needs memory, too.
    let _ = std::io::stdout().flush();
    let fits = map(BASE, PAGES, PRIVATE).is_ok();
    let pieces = (0..PAGES * PAGE).step_by(LARGE as usize);
    let taken = pieces.take_while(|at| {
        let pages = LARGE / PAGE;
        advise(BASE + at, pages, libc::MADV_POPULATE_WRITE).is_ok()
    });
    let bytes = taken.count() as u64 * LARGE;
    let executed = program.execute();
    let areas = (0..4096).map(|page| map(BASE + PAGES * PAGE + 2 * page * PAGE, 1, PRIVATE));
    let refused = areas
        .filter_map(Result::err)
        .all(|error| error == Errno::ENOMEM);
    // SAFETY: the child does nothing.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        // SAFETY: it ends the process.
        unsafe { libc::_exit(0) }
    }
    // Unmaps single pages of large ones.
    let given_back = (1..bytes / LARGE).all(|piece| unmap(BASE + piece * LARGE + PAGE, 1).is_ok());
    let freed = unmap(BASE, PAGES).is_ok();
    println!(
        "{fits} {executed:?} {refused} {} {given_back} {freed}",
        forked < 0
    );
}

/// This program, with the largest possible number of empty strings in its environment.
struct Program {
    environment: Vec<*const libc::c_char>,
}

impl Program {
    const PATH: &CStr = c"/proc/self/exe";
    const STRINGS: usize = 230_000;

    fn new() -> Self {
        let mut environment = vec![c"".as_ptr(); Self::STRINGS];
        environment.push(std::ptr::null());
        Self { environment }
    }

    fn execute(&self) -> Errno {
        let path = Self::PATH.as_ptr();
        let arguments = [path, std::ptr::null()];
        // SAFETY: both lists end with a null pointer.
        unsafe { libc::execve(path, arguments.as_ptr(), self.environment.as_ptr()) };
        Errno::last()
    }
}

/// Maps a file larger than memory, of which a page is written; and as a library's data, which there
/// is no memory to copy.
fn large_file() -> Result<(), ProbeError> {
    const SIZE: u64 = 1 << 30;
    let file = memfd_create(c"large", MFdFlags::empty()).named("memfd_create")?;
    ftruncate(&file, SIZE as i64).named("ftruncate")?;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let map = |more: i32| {
        let flags = PRIVATE | more as u64;
        let arguments = [0, SIZE, protection, flags, file.as_raw_fd() as u64, 0];
        // SAFETY: it replaces nothing.
        unsafe { call(libc::SYS_mmap as u64, arguments) }
    };
    let start = map(0).named("mmap")?;
    write(start, SIZE / PAGE - 1, 1);
    println!("a file larger than memory: {:?}", unmap(start, SIZE / PAGE));
    println!("as data: {:?}", map(libc::MAP_DENYWRITE));
    Ok(())
}

/// Touches a byte in each GiB of memory without large pages: each takes two page tables.
fn sparse() {
    const GIB: u64 = 1 << 30;
    const COUNT: u64 = 65_536;
    let flags = SHARED | (libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let arguments = [0, COUNT * GIB, protection, flags, u64::MAX, 0];
    // SAFETY: it replaces nothing, without MAP_FIXED.
    match unsafe { call(libc::SYS_mmap as u64, arguments) } {
        Ok(start) => (0..COUNT).for_each(|piece| write(start + piece * GIB, 0, 1)),
        Err(error) => println!("no addresses: {error}"),
    }
}

fn threads() {
    // Each of them also runs on the base for a moment, which has one core left.
    const MOST: usize = 10_000;
    let started = (0..MOST).take_while(|_| {
        let thread = thread::Builder::new().stack_size(32 << 10);
        thread
            .spawn(|| {
                loop {
                    thread::park()
                }
            })
            .is_ok()
    });
    println!("many threads: {}", started.count() >= MOST / 2);
}

/// Forks children without end, which wait for a pipe to close.
fn processes() -> Result<(), ProbeError> {
    const MOST: usize = 20_000;
    let (waits, release) = pipe().named("pipe")?;
    let mut children = Vec::new();
    let refused = loop {
        // SAFETY: this program has one thread.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                drop(release);
                let _ = read(&waits, &mut [0]);
                // SAFETY: it ends the process.
                unsafe { libc::_exit(0) }
            }
            Ok(ForkResult::Parent { child }) if children.len() < MOST => children.push(child),
            Ok(ForkResult::Parent { child }) => {
                children.push(child);
                break None;
            }
            Err(error) => break Some(error),
        }
    };
    drop(release);
    for &child in &children {
        waitpid(child, None).named("waiting for a child")?;
    }
    println!("many copies: {}", children.len() >= 500);
    println!("copies are refused: {refused:?}");
    Ok(())
}
