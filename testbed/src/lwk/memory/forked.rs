//! Memory after fork(2), which parent, child and grandchild share until one of them writes: each
//! finds what was there at the fork and what it has written itself, also by calls of the base, while
//! other threads write, and while the base holds its pages.

mod meanwhile;
mod pages;

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::lwk::memory::forked::pages::{Files, Memory};
use crate::lwk::{Named, ProbeError, call, shared};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Where the memory is: aligned to large pages, which Linux and the kernel both use there.
const PLACE: u64 = 0x50_0000_0000;
/// Where a moved part of it goes.
const ELSEWHERE: u64 = 0x51_0000_0000;
/// What calls read into memory, in each word.
const CONTENT: u64 = 0x5a5a_5a5a_5a5a_5a5a;

pub(crate) fn probe() -> Result<(), ProbeError> {
    let files = Files::make().map_err(wrong("its file"))?;
    generations(64 * MIB)?;
    println!("three generations have memory of their own");
    [&files.buffered, &files.direct]
        .into_iter()
        .try_for_each(|file| calls(file, &files.buffered))?;
    println!("calls read and write their caller's");
    kernel_writes()?;
    changed_mappings()?;
    println!("so do the kernel and changes of mappings");
    meanwhile::vforked(&files.buffered)?;
    println!("a vforked child writes to its parent's alone");
    meanwhile::vforked_with_a_pipe(&files.buffered)?;
    println!("nobody waits for what it leaves in a pipe");
    // Each time in new memory: its pages are mapped while it is forked, too.
    for _ in 0..10 {
        meanwhile::snapshots(2)?;
        meanwhile::order_of_writes(&files.buffered, 4)?;
    }
    println!("a child's memory is that of one moment");
    meanwhile::spliced()?;
    meanwhile::while_read(&files.direct, 60)?;
    println!("what the base holds stays its owner's");
    (0..60).try_for_each(|_| again())?;
    println!("and all of it comes back");
    Ok(())
}

fn wrong(what: &'static str) -> impl Fn(std::io::Error) -> ProbeError {
    move |error| ProbeError::Wrong(format!("{what}: {error}"))
}

/// Runs both in processes of their own. The child's failure is the parent's.
fn forked(
    child: impl FnOnce() -> Result<(), ProbeError>,
    parent: impl FnOnce() -> Result<(), ProbeError>,
) -> Result<(), ProbeError> {
    // SAFETY: the child allocates, which the C library allows there: no thread of this program
    // allocates meanwhile.
    match unsafe { fork() }.named("fork")? {
        ForkResult::Child => {
            let failed = child().inspect_err(|error| eprintln!("in a child: {error}"));
            // SAFETY: it ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(failed.is_err().into()) }
        }
        ForkResult::Parent { child } => {
            let done = parent();
            match waitpid(child, None).named("waiting for a child")? {
                WaitStatus::Exited(_, 0) => done,
                status => done.and(Err(ProbeError::Wrong(format!("a child: {status:?}")))),
            }
        }
    }
}

/// Waits until another process has counted so far.
fn wait_for(turn: &AtomicU64, wanted: u64) {
    while turn.load(Ordering::SeqCst) < wanted {
        // Also a hint to an emulator, whose cores take turns.
        std::hint::spin_loop();
    }
}

fn generations(size: u64) -> Result<(), ProbeError> {
    const ALL: u64 = 1 << 32;
    const CHILD: u64 = 2 << 32;
    const GRANDCHILD: u64 = 3 << 32;
    const PARENT: u64 = 4 << 32;
    let memory = Memory::map(PLACE, size)?;
    memory.fill(ALL);
    let is_odd = |page| page % 2 == 1;
    let of_child = |page| if is_odd(page) { CHILD } else { ALL };
    let grandchild = || {
        memory.holds("the grandchild", of_child)?;
        memory.write(|page| (page % 3 == 0).then_some(GRANDCHILD));
        let own = |page| {
            if page % 3 == 0 {
                GRANDCHILD
            } else {
                of_child(page)
            }
        };
        memory.holds("the grandchild afterwards", own)
    };
    let child = || {
        memory.holds("the child", |_| ALL)?;
        memory.write(|page| is_odd(page).then_some(CHILD));
        forked(grandchild, || memory.holds("the child", of_child))?;
        memory.holds("the child afterwards", of_child)
    };
    forked(child, || {
        memory.write(|page| (page % 5 == 0).then_some(PARENT));
        Ok(())
    })?;
    memory.holds(
        "the parent",
        |page| if page % 5 == 0 { PARENT } else { ALL },
    )?;
    memory.unmap()
}

/// Calls of the base on shared pages, by the child and then by the parent.
fn calls(file: &File, check: &File) -> Result<(), ProbeError> {
    const OLD: u64 = 7 << 32;
    const NEW: u64 = 8 << 32;
    let turn = &shared::words(1)?[0];
    let all = Memory::map(PLACE, 4 * MIB)?;
    all.fill(OLD);
    let (read, written) = (all.part(MIB, MIB / 2), all.part(3 * MIB, MIB / 4));
    let is_old = |who| all.holds(who, |_| OLD);
    let act = || {
        read.transfer(libc::SYS_pread64, file)?;
        read.is_filled("what was read", CONTENT)?;
        all.part(0, MIB).holds("beside it", |_| OLD)?;
        written.transfer(libc::SYS_pwrite64, file)?;
        written.fill(NEW);
        let found = Memory::map(ELSEWHERE, written.size)?;
        found.transfer(libc::SYS_pread64, check)?;
        found.holds("the file", |page| OLD ^ page ^ (page + 3 * MIB / PAGE))?;
        found.unmap()?;
        let back = Memory::map(ELSEWHERE, written.size)?;
        let words = CONTENT.to_ne_bytes().repeat(written.size as usize / 8);
        // SAFETY: the mapping is that large, and no Rust value is in it.
        unsafe {
            let to: *mut u8 = std::ptr::with_exposed_provenance_mut(back.start as usize);
            to.copy_from_nonoverlapping(words.as_ptr(), words.len());
        }
        back.transfer(libc::SYS_pwrite64, check)?;
        back.unmap()
    };
    let child = || {
        act()?;
        turn.store(1, Ordering::SeqCst);
        wait_for(turn, 2);
        read.is_filled("what the child has read", CONTENT)?;
        written.holds("what the child has written", |_| NEW)
    };
    forked(child, || {
        wait_for(turn, 1);
        is_old("the parent")?;
        let acted = act();
        turn.store(2, Ordering::SeqCst);
        acted
    })?;
    all.unmap()
}

/// A system call that the kernel executes itself writes to a shared page.
fn kernel_writes() -> Result<(), ProbeError> {
    const OLD: u64 = 9 << 32;
    let memory = Memory::map(PLACE, 2 * MIB)?;
    memory.fill(OLD);
    let ask = || {
        let at = memory.start + 5 * PAGE;
        let limit = [libc::RLIMIT_AS as u64, at, 0, 0, 0, 0];
        // SAFETY: it writes to memory without Rust values.
        unsafe { call(libc::SYS_getrlimit as u64, limit) }.named("getrlimit")?;
        memory.part(5 * PAGE, PAGE).is_filled("a limit", u64::MAX)?;
        memory.part(0, 5 * PAGE).holds("before it", |_| OLD)
    };
    forked(ask, || Ok(()))?;
    memory.holds("the parent", |_| OLD)?;
    forked(|| memory.holds("the child", |_| OLD), || Ok(()))?;
    ask()?;
    memory.unmap()
}

/// Both protect, move, discard and unmap parts of shared memory.
fn changed_mappings() -> Result<(), ProbeError> {
    const OLD: u64 = 10 << 32;
    const NEW: u64 = 11 << 32;
    let memory = Memory::map(PLACE, 8 * MIB)?;
    memory.fill(OLD);
    let act = || {
        let part = memory.part(MIB, 2 * MIB);
        for protection in [
            libc::PROT_READ,
            libc::PROT_NONE,
            libc::PROT_READ | libc::PROT_WRITE,
        ] {
            part.change("mprotect", libc::SYS_mprotect, protection as u64)?;
        }
        part.write(|page| (page % 4 == 0).then_some(NEW));
        let old = |page| OLD ^ page ^ (page + MIB / PAGE);
        let new = |page| if page % 4 == 0 { NEW } else { old(page) };
        part.holds("what was protected", new)?;
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let arguments = [part.start, part.size, part.size, flags, ELSEWHERE, 0];
        // SAFETY: neither range has a Rust value.
        unsafe { call(libc::SYS_mremap as u64, arguments) }.named("mremap")?;
        let moved = Memory {
            start: ELSEWHERE,
            ..part
        };
        moved.holds("what was moved", new)?;
        moved.fill(NEW);
        moved.unmap()?;
        let discarded = memory.part(5 * MIB + 3 * PAGE, PAGE * 40);
        discarded.change("madvise", libc::SYS_madvise, libc::MADV_DONTNEED as u64)?;
        discarded.is_filled("what was discarded", 0)?;
        memory.part(7 * MIB, MIB).unmap()?;
        memory.part(0, MIB).holds("the rest", |_| OLD)
    };
    forked(act, || Ok(()))?;
    memory.holds("the parent", |_| OLD)?;
    let turn = &shared::words(1)?[0];
    let child = || {
        wait_for(turn, 1);
        memory.holds("the child", |_| OLD)
    };
    forked(child, || {
        let acted = act();
        turn.store(1, Ordering::SeqCst);
        acted
    })?;
    memory.part(0, MIB).unmap()?;
    memory.part(3 * MIB, 4 * MIB).unmap()
}

/// Both copy some MiB; done often enough, more than the node has.
fn again() -> Result<(), ProbeError> {
    let memory = Memory::map(PLACE, 8 * MIB)?;
    memory.fill(1 << 32);
    let write = || {
        memory.write(|page| (page % 2 == 0).then_some(2 << 32));
        Ok(())
    };
    forked(write, write)?;
    memory.unmap()
}
