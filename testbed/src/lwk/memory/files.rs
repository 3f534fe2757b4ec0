//! Files mapped into memory, and madvise(2): either as on Linux, or refused.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;

use super::mappings::{PAGE, PRIVATE, SHARED, advise, map, read, unmap, write};
use crate::lwk::{Named, ProbeError, call, in_a_child, shared};

const BASE: u64 = 0x38_0000_0000;
const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
/// First words of the file's two pages.
const WORDS: [u64; 2] = [11, 22];

pub(crate) fn probe() -> Result<(), ProbeError> {
    let path = format!("/tmp/probe-{}", std::process::id());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    let file = file.map_err(|error| ProbeError::Wrong(format!("{path}: {error}")))?;
    let done = probe_file(&file, &path).and_then(|()| advice());
    let _ = std::fs::remove_file(&path);
    done
}

fn probe_file(file: &File, path: &str) -> Result<(), ProbeError> {
    let io = |error| ProbeError::Wrong(format!("{path}: {error}"));
    for (word, at) in WORDS.into_iter().zip((0..).step_by(PAGE as usize)) {
        file.write_all_at(&word.to_le_bytes(), at).map_err(io)?;
    }
    let reader = File::open(path).map_err(io)?;
    private(&reader)?;
    shared_to_read(&reader)?;
    shared_to_change(file).map_err(io)??;
    let folder = File::open("/").map_err(io)?;
    println!("a folder: {:?}", map_file(&folder, 1, READ, PRIVATE));
    Ok(())
}

fn map_file(file: &File, pages: u64, protection: u64, kind: u64) -> Result<u64, Errno> {
    let flags = kind | libc::MAP_FIXED_NOREPLACE as u64;
    let arguments = [
        BASE,
        pages * PAGE,
        protection,
        flags,
        file.as_raw_fd() as u64,
        0,
    ];
    // SAFETY: it replaces nothing.
    unsafe { call(libc::SYS_mmap as u64, arguments) }
}

fn protect(protection: u64) -> Result<u64, Errno> {
    // SAFETY: no Rust value is there.
    unsafe { call(libc::SYS_mprotect as u64, [BASE, PAGE, protection, 0, 0, 0]) }
}

/// Private mapping: pages that the program has not changed have the file's content; changes are
/// lost after MADV_DONTNEED.
fn private(reader: &File) -> Result<(), ProbeError> {
    println!("private: {:x?}", map_file(reader, 4, READ, PRIVATE));
    let words = || [read(BASE, 0), read(BASE, 1)];
    println!("not needed: {:?}", advise(BASE, 2, libc::MADV_DONTNEED));
    println!("{:?}, {:?}", words(), advise(BASE, 2, libc::MADV_FREE));
    let ended = in_a_child(|| {
        read(BASE, 2);
    })?;
    let killed = matches!(ended, WaitStatus::Signaled(_, Signal::SIGBUS, _));
    println!("behind its end: {killed}");
    println!("to be written: {:?}", protect(READ | WRITE));
    write(BASE, 0, 33);
    let found = match advise(BASE, 1, libc::MADV_DONTNEED) {
        Ok(_) => words() == WORDS,
        Err(error) => error == Errno::EINVAL && words() == [33, WORDS[1]],
    };
    println!("changed, and not needed: {found}, {:?}", unmap(BASE, 4));
    Ok(())
}

fn shared_to_read(reader: &File) -> Result<(), ProbeError> {
    println!("shared: {:x?}", map_file(reader, 2, READ, SHARED));
    println!("{:?}, {:?}", read(BASE, 1), protect(READ | WRITE));
    println!("not needed: {:?}", advise(BASE, 2, libc::MADV_DONTNEED));
    println!("{:?}, {:?}", read(BASE, 0), unmap(BASE, 2));
    println!(
        "to be written: {:?}",
        map_file(reader, 2, READ | WRITE, SHARED)
    );
    Ok(())
}

/// Shared mapping of a descriptor that can be written: writes reach the file, or the mapping is
/// refused.
fn shared_to_change(file: &File) -> std::io::Result<Result<(), ProbeError>> {
    let seen = match map_file(file, 2, READ, SHARED) {
        Ok(_) => {
            file.write_all_at(&44_u64.to_le_bytes(), 0)?;
            let seen = read(BASE, 0) == 44;
            Ok(seen && unmap(BASE, 2).is_ok())
        }
        Err(Errno::ENODEV) => Ok(true),
        Err(error) => Err(error).named("a shared mapping"),
    };
    Ok(seen.map(|seen| println!("what is written is seen: {seen}")))
}

/// Effects of madvise on the memory of forked children.
fn advice() -> Result<(), ProbeError> {
    let sum_of_child = &shared::words(1)?[0];
    println!("memory: {:x?}", map(BASE, 8, PRIVATE));
    (0..8).for_each(|page| write(BASE, page, page + 1));
    let at = |page: u64| BASE + page * PAGE;
    println!("wiped: {:?}", advise(at(0), 3, libc::MADV_WIPEONFORK));
    println!("kept: {:?}", advise(at(1), 1, libc::MADV_KEEPONFORK));
    println!("left out: {:?}", advise(at(4), 2, libc::MADV_DONTFORK));
    println!("put in: {:?}", advise(at(5), 1, libc::MADV_DOFORK));
    in_a_child(|| {
        let found = [0, 1, 2, 3, 5, 6].map(|page| read(BASE, page));
        let sum = found.iter().fold(0, |sum, word| sum * 10 + word);
        sum_of_child.store(sum, Ordering::Relaxed);
    })?;
    println!("a child has {}", sum_of_child.load(Ordering::Relaxed));
    let ended = in_a_child(|| {
        read(BASE, 4);
    })?;
    let killed = matches!(ended, WaitStatus::Signaled(_, Signal::SIGSEGV, _));
    println!("not in a copy: {killed}, {}", read(BASE, 4));
    for advice in [libc::MADV_REMOVE, 77] {
        println!("advice {advice}: {:?}", advise(BASE, 1, advice));
    }
    println!("{:?}", unmap(BASE, 8));
    println!("shared: {:x?}", map(BASE, 1, SHARED));
    for advice in [libc::MADV_WIPEONFORK, libc::MADV_FREE] {
        println!("advice {advice}: {:?}", advise(BASE, 1, advice));
    }
    println!("{:?}", unmap(BASE, 1));
    Ok(())
}
