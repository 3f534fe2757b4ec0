//! What happens at the moment of a fork, and beside it: other threads write, the base holds pages, a
//! second child has the same memory.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};

use super::pages::Memory;
use super::{CONTENT, MIB, PAGE, PLACE, forked, wait_for, wrong};
use crate::lwk::memory::pins::{pipe, splice};
use crate::lwk::processes::sharing;
use crate::lwk::{Named, ProbeError, call, shared};

/// What a vforked child has to write where.
struct Vforked {
    memory: Memory,
    file: i32,
}

pub(super) fn vforked(file: &File) -> Result<(), ProbeError> {
    const OLD: u64 = 12 << 32;
    const NEW: u64 = 13 << 32;
    extern "C" fn body(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the parent waits until this process has ended.
        let Vforked { memory, file } = unsafe { &*work.cast::<Vforked>() };
        memory.part(0, MIB).fill(NEW);
        let arguments = [*file as u64, memory.start + MIB, MIB, 0, 0, 0];
        // SAFETY: it writes to memory without Rust values.
        let read = unsafe { call(libc::SYS_pread64 as u64, arguments) };
        i32::from(read != Ok(MIB))
    }
    let turn = &shared::words(1)?[0];
    let memory = Memory::map(PLACE, 4 * MIB)?;
    memory.fill(OLD);
    let child = || {
        wait_for(turn, 1);
        memory.holds("the forked child", |_| OLD)
    };
    forked(child, || {
        let file = file.as_raw_fd();
        let pid = sharing::start(body, &Vforked { memory, file }, true)?;
        let ended = waitpid(pid, None).named("waiting")?;
        turn.store(1, Ordering::SeqCst);
        memory.part(0, MIB).holds("the parent", |_| NEW)?;
        memory
            .part(MIB, MIB)
            .is_filled("what it has read", CONTENT)?;
        let is_done = matches!(ended, WaitStatus::Exited(_, 0));
        let wrong = || ProbeError::Wrong(format!("the vforked child: {ended:?}"));
        is_done.then_some(()).ok_or_else(wrong)
    })?;
    memory.unmap()
}

/// A vforked child leaves a page in a pipe: nothing on its parent's side waits for that.
pub(super) fn vforked_with_a_pipe(file: &File) -> Result<(), ProbeError> {
    extern "C" fn body(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the parent waits until this process has ended.
        let Vforked { memory, file } = unsafe { &*work.cast::<Vforked>() };
        let vector = [memory.start, PAGE];
        let vector = vector.as_ptr().expose_provenance() as u64;
        let arguments = [*file as u64, vector, 1, 0, 0, 0];
        // SAFETY: the pipe reads memory without Rust values.
        let taken = unsafe { call(libc::SYS_vmsplice as u64, arguments) };
        i32::from(taken != Ok(PAGE))
    }
    const WORD: u64 = 17 << 32;
    let memory = Memory::map(PLACE, MIB)?;
    memory.fill(WORD);
    let (mut read, write) = pipe()?;
    let pipe = write.as_raw_fd();
    let work = Vforked { memory, file: pipe };
    let ended = waitpid(sharing::start(body, &work, true)?, None).named("waiting")?;
    let mapped = Memory::of_file(PLACE + MIB, MIB, file)?;
    mapped.is_filled("the file", CONTENT)?;
    mapped.change("mprotect", libc::SYS_mprotect, libc::PROT_READ as u64)?;
    mapped.unmap()?;
    let mut found = [0; 8];
    read.read_exact(&mut found).map_err(wrong("the pipe"))?;
    let is_right = matches!(ended, WaitStatus::Exited(_, 0)) && found == WORD.to_ne_bytes();
    let wrong = || ProbeError::Wrong(format!("{ended:?}, the pipe: {found:?}"));
    is_right.then_some(()).ok_or_else(wrong)?;
    memory.unmap()
}

/// Forks while a thread writes numbers, each to its memory first, then to a private page of a file: a
/// child finds none in the file that is greater.
pub(super) fn order_of_writes(file: &File, forks: u64) -> Result<(), ProbeError> {
    let memory = Memory::map(PLACE, MIB)?;
    let of_file = Memory::of_file(PLACE + MIB, MIB, file)?;
    let (first, second) = (memory.word(0), of_file.word(0));
    second.store(0, Ordering::SeqCst);
    let is_over = AtomicBool::new(false);
    let child = || {
        let (later, earlier) = (second.load(Ordering::SeqCst), first.load(Ordering::SeqCst));
        if later > earlier {
            // SAFETY: it ends the process.
            unsafe { libc::_exit(4) }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
                number += 1;
                first.store(number, Ordering::SeqCst);
                second.store(number, Ordering::SeqCst);
            }
        });
        let forked = (0..forks).try_for_each(|_| forked(child, || Ok(())));
        is_over.store(true, Ordering::Relaxed);
        forked
    })?;
    of_file.unmap()?;
    memory.unmap()
}

/// Forks while threads write numbers to their pages, in order: a child finds no number on a page
/// that is greater than on the one before, and none changes.
pub(super) fn snapshots(forks: u64) -> Result<(), ProbeError> {
    const THREADS: u64 = 2;
    const SIZE: u64 = 48 * PAGE;
    let memory = Memory::map(PLACE, 4 * MIB)?;
    let parts: Vec<Memory> = (0..THREADS)
        .map(|part| memory.part(part * 2 * MIB, SIZE))
        .collect();
    let is_over = AtomicBool::new(false);
    let write = |part: Memory| {
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
            number += 1;
            part.pages()
                .for_each(|page| part.word(page).store(number, Ordering::SeqCst));
        }
    };
    // They allocate nothing: other threads' locks stay as they are in the child.
    let look = |part: &Memory, first: u64| {
        part.pages().try_fold(first, |before, page| {
            let number = part.word(page).load(Ordering::SeqCst);
            (number <= before && before - number <= 1).then_some(number)
        })
    };
    let child = || {
        for part in &parts {
            let first = part.word(0).load(Ordering::SeqCst);
            let looks = [look(part, first), look(part, first)];
            if looks[0].is_none()
                || looks[0] != looks[1]
                || part.word(0).load(Ordering::SeqCst) != first
            {
                // SAFETY: it ends the process.
                unsafe { libc::_exit(3) }
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        parts
            .iter()
            .for_each(|&part| drop(scope.spawn(move || write(part))));
        let forked = (0..forks).try_for_each(|_| forked(child, || Ok(())));
        is_over.store(true, Ordering::Relaxed);
        forked
    })?;
    memory.unmap()
}

/// Pages that are in a pipe at the fork, and pages that go there after it.
pub(super) fn spliced() -> Result<(), ProbeError> {
    const OLD: u64 = 14 << 32;
    const NEW: u64 = 15 << 32;
    const PAGES: u64 = 64;
    let check = |mut read: &File| {
        let mut found = vec![0; (PAGES * PAGE) as usize];
        read.read_exact(&mut found).map_err(wrong("the pipe"))?;
        let mut words = (0..PAGES).zip(found.chunks(PAGE as usize));
        let is_same = words.all(|(page, bytes)| bytes[..8] == (OLD ^ page).to_ne_bytes());
        let wrong = || ProbeError::Wrong("the pipe has something else".to_owned());
        is_same.then_some(()).ok_or_else(wrong)
    };
    let memory = Memory::map(PLACE, 2 * MIB)?;
    let turn = &shared::words(1)?[0];
    for is_before in [true, false] {
        turn.store(0, Ordering::SeqCst);
        let (read, write) = pipe()?;
        memory.fill(OLD);
        if is_before {
            splice(&write, memory.start, PAGES)?;
        }
        let child = || {
            memory.holds("the child", |_| OLD)?;
            if !is_before {
                splice(&write, memory.start, PAGES)?;
                turn.store(1, Ordering::SeqCst);
                wait_for(turn, 2);
                return check(&read);
            }
            wait_for(turn, 1);
            memory.fill(NEW);
            memory.unmap()?;
            Memory::map(PLACE, 2 * MIB)?.fill(NEW);
            Ok(())
        };
        forked(child, || {
            if is_before {
                // The same, but a write: the child's page must not become that of the pipe.
                memory.fill(OLD);
                turn.store(1, Ordering::SeqCst);
            } else {
                wait_for(turn, 1);
                memory.fill(NEW);
                turn.store(2, Ordering::SeqCst);
            }
            Ok(())
        })?;
        if is_before {
            check(&read)?;
            memory.holds("the parent", |_| OLD)?;
        }
    }
    memory.unmap()
}

/// A disk is read into memory while another thread forks, and writes to the same pages afterwards:
/// the data reach the parent, all of them.
pub(super) fn while_read(file: &File, forks: u64) -> Result<(), ProbeError> {
    let memory = Memory::map(PLACE, 2 * MIB)?;
    let is_over = AtomicBool::new(false);
    let read = || {
        while !is_over.load(Ordering::Relaxed) {
            memory.fill(0);
            memory.transfer(libc::SYS_pread64, file)?;
            memory.is_filled("what was read", CONTENT)?;
        }
        Ok(())
    };
    let child = || {
        memory.write(|page| (page % 7 == 0).then_some(16 << 32));
        Ok(())
    };
    let beside = || {
        let pages = memory.pages();
        pages.for_each(|page| memory.second_word(page).store(page, Ordering::Relaxed));
        Ok(())
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(read);
        let forked = (0..forks).try_for_each(|_| forked(child, beside));
        is_over.store(true, Ordering::Relaxed);
        reader
            .join()
            .unwrap_or(Err(ProbeError::Unknown))
            .and(forked)
    })?;
    memory.unmap()
}
