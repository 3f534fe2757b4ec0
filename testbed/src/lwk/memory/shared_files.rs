//! Files mapped into memory and shared: writes by the mapping, by calls and by other processes are
//! seen by all, also after what Linux' memory management does to their pages.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use super::mappings::{PAGE, PRIVATE, SHARED, advise, read, unmap, write};
use crate::lwk::{Named, ProbeError, call, in_a_child};

const BASE: u64 = 0x3a_0000_0000;
const OTHER: u64 = 0x3b_0000_0000;
const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const PAGES: u64 = 24;

pub(crate) fn probe() -> Result<(), ProbeError> {
    for (name, file) in [
        ("a file in memory", memfd()?),
        ("a file", unnamed("/var/tmp")?),
        ("shared memory", unnamed("/dev/shm")?),
    ] {
        println!("{name}:");
        println!("size: {:?}", file.set_len(PAGES * PAGE).is_ok());
        coherent(&file)?;
        private_follows(&file)?;
        protected(&file)?;
        moved(&file)?;
        advised(&file);
        taken_back(&file)?;
        truncated(&file)?;
        forked(&file)?;
        futexes(&file)?;
        asynchronous(&file)?;
    }
    segments()
}

/// Linux' AIO: writes what is read back, from and into memory of the program and of the file.
fn asynchronous(file: &File) -> Result<(), ProbeError> {
    const READ_COMMAND: u64 = 0;
    const WRITE_COMMAND: u64 = 1;
    let mut context = 0_u64;
    let place = &raw mut context as u64;
    let set_up = make(libc::SYS_io_setup, [8, place, 0, 0]);
    println!(
        "contexts: {set_up:?}, {:?}",
        make(libc::SYS_io_setup, [8, place, 0, 0])
    );
    let mut buffer = [0x5a_u8; 512];
    for (command, page) in [(WRITE_COMMAND, 10), (READ_COMMAND, 11), (READ_COMMAND, 10)] {
        // struct iocb: data, key, command and descriptor, buffer, size, offset.
        let request: [u64; 8] = [
            page,
            0,
            command | (file.as_raw_fd() as u64) << 32,
            buffer.as_mut_ptr() as u64,
            buffer.len() as u64,
            page * PAGE,
            0,
            0,
        ];
        let list = [&raw const request as u64];
        let submitted = make(libc::SYS_io_submit, [context, 1, list.as_ptr() as u64, 0]);
        let mut event = [0_u64; 4];
        let arguments = [context, 1, 1, event.as_mut_ptr() as u64, 0, 0];
        // SAFETY: it writes the event.
        let got = unsafe { call(libc::SYS_io_getevents as u64, arguments) };
        println!(
            "{submitted:?}, {got:?}, {}, {}, {}",
            event[0], event[2], buffer[7]
        );
    }
    println!("done: {:?}", make(libc::SYS_io_destroy, [context, 0, 0, 0]));
    println!("{:?}", make(libc::SYS_io_destroy, [context, 0, 0, 0]));
    Ok(())
}

/// System V shared memory.
fn segments() -> Result<(), ProbeError> {
    let size = 3 * PAGE;
    let flags = (libc::IPC_CREAT | 0o600) as u64;
    let id = make(libc::SYS_shmget, [0, size, flags, 0]).named("shmget")?;
    let attach = |at: u64, flags: i32| make(libc::SYS_shmat, [id, at, flags as u64, 0]);
    let detach = |at: u64| make(libc::SYS_shmdt, [at, 0, 0, 0]);
    let first = attach(0, 0).named("shmat")?;
    println!("attached: {:x?}", attach(OTHER, libc::SHM_RDONLY));
    println!("over it: {:?}", attach(OTHER, 0));
    println!("unaligned: {:?}", attach(OTHER + 8, 0));
    println!("{:x?}", attach(OTHER + 8 * PAGE + 8, libc::SHM_RND));
    write(first, 1, 51);
    let ended = in_a_child(|| write(first, 2, read(OTHER, 1) + 1))?;
    println!(
        "{}, {}",
        matches!(ended, WaitStatus::Exited(_, 0)),
        read(OTHER, 2)
    );
    println!("{}", read(OTHER + 8 * PAGE, 2));
    let ended = in_a_child(|| write(OTHER, 0, 1))?;
    println!("read only: {}", is_signal(ended, Signal::SIGSEGV));
    println!(
        "removed: {:?}",
        make(libc::SYS_shmctl, [id, libc::IPC_RMID as u64, 0, 0])
    );
    println!("{:?}, {:?}", detach(first), detach(first));
    println!(
        "{}, {:?}, {:?}",
        read(OTHER, 2),
        detach(OTHER),
        detach(OTHER + 8 * PAGE)
    );
    let ended = in_a_child(|| {
        read(OTHER, 0);
    })?;
    println!(
        "detached: {}, {:?}",
        is_signal(ended, Signal::SIGSEGV),
        attach(0, 0)
    );
    Ok(())
}

/// Makes a file in memory.
pub(super) fn memfd() -> Result<File, ProbeError> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"probe".as_ptr(), libc::MFD_CLOEXEC) };
    let fd = Errno::result(fd).named("memfd_create")?;
    // SAFETY: it has just been made for us alone.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Makes a file without a name in a folder.
pub(crate) fn unnamed(folder: &str) -> Result<File, ProbeError> {
    let path = format!("{folder}/probe-{}", std::process::id());
    let io = |error| ProbeError::Wrong(format!("{path}: {error}"));
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path);
    std::fs::remove_file(&path).map_err(io)?;
    file.map_err(io)
}

fn map(at: u64, pages: u64, protection: u64, kind: u64, file: &File) -> Result<u64, Errno> {
    let flags = kind | libc::MAP_FIXED as u64;
    let arguments = [
        at,
        pages * PAGE,
        protection,
        flags,
        file.as_raw_fd() as u64,
        0,
    ];
    // SAFETY: it replaces only what this probe has mapped.
    unsafe { call(libc::SYS_mmap as u64, arguments) }
}

fn make(number: i64, arguments: [u64; 4]) -> Result<u64, Errno> {
    let [a, b, c, d] = arguments;
    // SAFETY: no Rust value is in the ranges that this probe names.
    unsafe { call(number as u64, [a, b, c, d, 0, 0]) }
}

fn word_of(file: &File, page: u64) -> Result<u64, ProbeError> {
    let mut bytes = [0; 8];
    let read = file.read_exact_at(&mut bytes, page * PAGE);
    read.map_err(|error| ProbeError::Wrong(format!("reading the file: {error}")))?;
    Ok(u64::from_le_bytes(bytes))
}

pub(super) fn put_word(file: &File, page: u64, word: u64) -> Result<(), ProbeError> {
    let written = file.write_all_at(&word.to_le_bytes(), page * PAGE);
    written.map_err(|error| ProbeError::Wrong(format!("writing the file: {error}")))
}

pub(super) fn is_signal(status: WaitStatus, signal: Signal) -> bool {
    matches!(status, WaitStatus::Signaled(_, found, _) if found == signal)
}

/// Writes by the mapping and by calls are seen by the other, and by a second mapping.
fn coherent(file: &File) -> Result<(), ProbeError> {
    println!(
        "mapped: {:x?}",
        map(BASE, PAGES, READ | WRITE, SHARED, file)
    );
    println!(
        "twice: {:x?}",
        map(OTHER, PAGES, READ | WRITE, SHARED, file)
    );
    for page in 0..PAGES {
        write(BASE, page, page + 100);
        put_word(file, page, word_of(file, page)? + 1000)?;
    }
    let words: Vec<u64> = (0..PAGES).map(|page| read(OTHER, page)).collect();
    println!("{words:?}");
    // A call that reads from one mapping into another.
    let arguments = [file.as_raw_fd() as u64, OTHER + PAGE, 8, 0];
    println!("into it: {:?}", make(libc::SYS_pread64, arguments));
    println!("{}, {}", read(BASE, 1), word_of(file, 1)?);
    println!(
        "{:?}",
        make(
            libc::SYS_msync,
            [BASE, PAGES * PAGE, libc::MS_SYNC as u64, 0]
        )
    );
    let mut present = [0xff_u8; PAGES as usize];
    let place = present.as_mut_ptr() as u64;
    println!(
        "{:?}",
        make(libc::SYS_mincore, [BASE, PAGES * PAGE, place, 0])
    );
    println!("{}", present.iter().filter(|&&byte| byte & 1 != 0).count());
    println!("{:?}", make(libc::SYS_mlock, [BASE, PAGE, 0, 0]));
    println!("{:?}", make(libc::SYS_munlock, [BASE, PAGE, 0, 0]));
    println!("{:?}", unmap(OTHER, PAGES));
    Ok(())
}

/// A private mapping that only reads sees what is written to the file; when it is made writable, its
/// own writes stay its own.
fn private_follows(file: &File) -> Result<(), ProbeError> {
    println!("private: {:x?}", map(OTHER, PAGES, READ, PRIVATE, file));
    println!("{}", read(OTHER, 2));
    write(BASE, 2, 77);
    println!("{}", read(OTHER, 2));
    let protected = make(libc::SYS_mprotect, [OTHER, 4 * PAGE, READ | WRITE, 0]);
    println!("writable: {protected:?}");
    write(OTHER, 2, 78);
    println!(
        "{}, {}, {}",
        read(OTHER, 2),
        read(BASE, 2),
        word_of(file, 2)?
    );
    println!("{}, {:?}", read(OTHER, 5), unmap(OTHER, PAGES));
    Ok(())
}

fn protected(file: &File) -> Result<(), ProbeError> {
    let protect = |protection| make(libc::SYS_mprotect, [BASE + 3 * PAGE, PAGE, protection, 0]);
    println!("read only: {:?}", protect(READ));
    let ended = in_a_child(|| write(BASE, 3, 1))?;
    println!(
        "{}, {}",
        is_signal(ended, Signal::SIGSEGV),
        word_of(file, 3)?
    );
    println!("{:?}", protect(0));
    let ended = in_a_child(|| {
        read(BASE, 3);
    })?;
    println!(
        "{}, {:?}",
        is_signal(ended, Signal::SIGSEGV),
        protect(READ | WRITE)
    );
    write(BASE, 3, 5);
    println!("{}", word_of(file, 3)?);
    Ok(())
}

/// Parts are moved, cut off and replaced.
fn moved(file: &File) -> Result<(), ProbeError> {
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
    // SAFETY: neither range has a Rust value.
    let to_other = |pages: u64| unsafe {
        let arguments = [BASE + 8 * PAGE, 4 * PAGE, pages * PAGE, flags, OTHER, 0];
        call(libc::SYS_mremap as u64, arguments)
    };
    println!("moved: {:x?}", to_other(6));
    write(OTHER, 1, 91);
    println!(
        "{}, {}",
        word_of(file, 9)?,
        read(OTHER, 5) == word_of(file, 13)?
    );
    let ended = in_a_child(|| {
        read(BASE, 9);
    })?;
    println!("{}", is_signal(ended, Signal::SIGSEGV));
    let grown = make(libc::SYS_mremap, [OTHER, 6 * PAGE, 8 * PAGE, 0]);
    println!("grown: {:?}", grown.map(|at| at == OTHER));
    println!("{}", read(OTHER, 7) == word_of(file, 15)?);
    let shrunk = make(libc::SYS_mremap, [OTHER, 8 * PAGE, PAGE, 0]);
    println!(
        "shrunk: {:?}, {:?}",
        shrunk.map(|at| at == OTHER),
        unmap(OTHER, 1)
    );
    println!("again: {:x?}", map(BASE, PAGES, READ | WRITE, SHARED, file));
    println!("{}", read(BASE, 9));
    Ok(())
}

fn advised(file: &File) {
    println!("not needed: {:?}", advise(BASE, PAGES, libc::MADV_DONTNEED));
    println!("{}, {}", read(BASE, 9), read(BASE, 3));
    let removed = advise(BASE + 16 * PAGE, 1, libc::MADV_REMOVE);
    println!("removed: {removed:?}, {}", read(BASE, 16));
    println!(
        "populated: {:?}",
        advise(BASE, PAGES, libc::MADV_POPULATE_WRITE)
    );
    println!("wiped: {:?}", advise(BASE, 1, libc::MADV_WIPEONFORK));
    println!("{:?}", advise(BASE, 1, libc::MADV_FREE));
    println!("{:?}", word_of(file, 16).is_ok());
}

/// The base writes pages back, moves and reclaims them: nothing is lost.
fn taken_back(file: &File) -> Result<(), ProbeError> {
    for round in 0..8 {
        for page in 0..PAGES {
            write(BASE, page, round * 100 + page);
        }
        let _ = file.sync_all();
        if round % 2 == 1 {
            advise(BASE, PAGES, libc::MADV_PAGEOUT).named("MADV_PAGEOUT")?;
        }
        // Only root may, and only where it is mounted so.
        let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
        for page in 0..PAGES {
            let (mapped, stored) = (read(BASE, page), word_of(file, page)?);
            if mapped != round * 100 + page || stored != mapped {
                let text = format!("page {page} of round {round}: {mapped}, {stored}");
                return Err(ProbeError::Wrong(text));
            }
            write(BASE, page, 1);
        }
    }
    println!("taken back");
    Ok(())
}

fn truncated(file: &File) -> Result<(), ProbeError> {
    let set = |pages: u64| file.set_len(pages * PAGE).is_ok();
    write(BASE, 20, 20);
    println!("cut: {}", set(18));
    let ended = in_a_child(|| {
        read(BASE, 20);
    })?;
    println!("behind its end: {}", is_signal(ended, Signal::SIGBUS));
    let arguments = [file.as_raw_fd() as u64, BASE + 20 * PAGE, 8, 0];
    println!("by a call: {:?}", make(libc::SYS_pwrite64, arguments));
    println!(
        "grown: {}, {}, {}",
        set(PAGES),
        read(BASE, 20),
        read(BASE, 17)
    );
    Ok(())
}

/// A child shares the mapping, also where the parent has not touched it; what a parent excludes, the
/// child does not have.
fn forked(file: &File) -> Result<(), ProbeError> {
    let _ = advise(BASE, PAGES, libc::MADV_DONTNEED);
    write(BASE, 1, 41);
    let ended = in_a_child(|| {
        write(BASE, 1, read(BASE, 1) + 1);
        write(BASE, 2, 43);
    })?;
    println!("{}", matches!(ended, WaitStatus::Exited(_, 0)));
    println!(
        "{}, {}, {}",
        read(BASE, 1),
        read(BASE, 2),
        word_of(file, 2)?
    );
    println!(
        "left out: {:?}",
        advise(BASE + 4 * PAGE, 1, libc::MADV_DONTFORK)
    );
    let ended = in_a_child(|| {
        read(BASE, 4);
    })?;
    println!("{}, {}", is_signal(ended, Signal::SIGSEGV), read(BASE, 4));
    println!("{:?}", advise(BASE + 4 * PAGE, 1, libc::MADV_DOFORK));
    Ok(())
}

/// A process waits for a word that another one changes.
fn futexes(file: &File) -> Result<(), ProbeError> {
    const WAIT: u64 = libc::FUTEX_WAIT as u64;
    const WAKE: u64 = libc::FUTEX_WAKE as u64;
    let turn = BASE + 6 * PAGE;
    write(BASE, 6, 0);
    let wait_for = |value: u64| {
        loop {
            // Read once: the other one may change it before the call.
            let seen = read(BASE, 6);
            if seen == value {
                return;
            }
            let _ = make(libc::SYS_futex, [turn, WAIT, seen & 0xffff_ffff, 0]);
        }
    };
    let pass = |value: u64| {
        write(BASE, 6, value);
        let _ = make(libc::SYS_futex, [turn, WAKE, 1, 0]);
    };
    // SAFETY: this program has one thread here.
    let child = match unsafe { nix::unistd::fork() }.named("fork")? {
        nix::unistd::ForkResult::Child => {
            for value in (0..40).step_by(2) {
                wait_for(value);
                pass(value + 1);
            }
            // SAFETY: it ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        nix::unistd::ForkResult::Parent { child } => child,
    };
    for value in (1..40).step_by(2) {
        wait_for(value);
        pass(value + 1);
    }
    let ended = nix::sys::wait::waitpid(child, None).named("waiting for a child")?;
    let ended = ended == WaitStatus::Exited(child, 0);
    println!(
        "turns: {ended}, {}, {:?}",
        word_of(file, 6)?,
        unmap(BASE, PAGES)
    );
    Ok(())
}
