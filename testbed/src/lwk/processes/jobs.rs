//! Job control: which processes stop, by which signal, and how they continue.

use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid, setpgid, setsid};

use super::signals::{catch, child, default, mask, wait_until};
use crate::lwk::{Named, ProbeError};

pub(crate) fn probe() -> Result<(), ProbeError> {
    stopped_while_computing(Signal::SIGTSTP)?;
    caught_and_ignored()?;
    let leader = child(|_| {
        if let Err(error) = with_a_terminal() {
            println!("{error}");
        }
    })?;
    waitpid(leader, None).named("waiting")?;
    Ok(())
}

/// Puts a child into a group of its own. The group must not be orphaned, or it could not be
/// stopped.
fn lead_own_group() {
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
}

/// Word that processes share.
fn shared() -> Result<&'static AtomicU64, ProbeError> {
    let size = NonZeroUsize::new(size_of::<AtomicU64>()).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let shared = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_SHARED) };
    // SAFETY: it is never unmapped, aligned to a page, and all zero.
    Ok(unsafe { shared.named("mmap")?.cast().as_ref() })
}

/// Signal that stopped a child; an error if it ended.
fn stop_of(child: Pid) -> Result<i32, ProbeError> {
    match waitpid(child, Some(WaitPidFlag::WUNTRACED)).named("waiting")? {
        WaitStatus::Stopped(_, signal) => Ok(signal as i32),
        WaitStatus::Exited(_, status) => Ok(1000 + status),
        other => Err(ProbeError::Wrong(format!("a child: {other:?}"))),
    }
}

/// Whether a count that another process increments stays constant for a while.
fn stands_still(count: &AtomicU64) -> bool {
    let before = count.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(200));
    count.load(Ordering::SeqCst) == before
}

/// Attempts to stop a program by SIGSTOP. The base stops the proxy at once; the node finds out when the
/// proxy's thread sleeps, which takes a moment after each call of the program.
const STOPS: u32 = 20;

/// Stops a child that counts, so that it stands still. Returns the signal that its parent is told.
fn stop(child: Pid, by: Signal, count: &AtomicU64) -> Result<i32, ProbeError> {
    for _ in 0..STOPS {
        kill(child, by).named("kill")?;
        let stopped = stop_of(child)?;
        if by != Signal::SIGSTOP || stands_still(count) {
            return Ok(stopped);
        }
        kill(child, Signal::SIGCONT).named("kill")?;
        std::thread::sleep(Duration::from_millis(200));
    }
    Err(ProbeError::Wrong("it does not stop".into()))
}

/// Stops a program that makes no system call.
pub(crate) fn stopped_while_computing(by: Signal) -> Result<(), ProbeError> {
    let count = shared()?;
    let computing = child(|_| {
        lead_own_group();
        loop {
            count.fetch_add(1, Ordering::SeqCst);
        }
    })?;
    wait_until("a program that computes", || {
        count.load(Ordering::SeqCst) > 0
    })?;
    let stopped = stop(computing, by, count)?;
    wait_until("it to stand still", || stands_still(count))?;
    kill(computing, Signal::SIGCONT).named("kill")?;
    let before = count.load(Ordering::SeqCst);
    wait_until("it to go on", || count.load(Ordering::SeqCst) > before)?;
    kill(computing, by).named("kill")?;
    let again = stop_of(computing)?;
    kill(computing, Signal::SIGKILL).named("kill")?;
    let ended = waitpid(computing, None).named("waiting")?;
    let killed = matches!(ended, WaitStatus::Signaled(_, Signal::SIGKILL, _));
    println!("stopped by {stopped}, again by {again}, killed: {killed}");
    Ok(())
}

/// A process that catches or ignores a stop signal is not stopped; SIGCONT is caught by a stopped
/// process.
fn caught_and_ignored() -> Result<(), ProbeError> {
    let steps = shared()?;
    let other = child(|_| {
        lead_own_group();
        let caught = catch(libc::SIGTSTP, 0).and_then(|()| catch(libc::SIGCONT, 0));
        // SAFETY: it is ignored.
        unsafe { libc::signal(libc::SIGTTIN, libc::SIG_IGN) };
        steps.store(1 + u64::from(caught.is_err()), Ordering::SeqCst);
        for _ in 0..2 {
            // SAFETY: it waits for a signal that is caught.
            unsafe { libc::pause() };
            steps.fetch_add(1, Ordering::SeqCst);
        }
    })?;
    wait_until("a child", || steps.load(Ordering::SeqCst) == 1)?;
    kill(other, Signal::SIGTTIN).named("kill")?;
    for (signal, step) in [(Signal::SIGTSTP, 2), (Signal::SIGCONT, 3)] {
        wait_until("a child that waits", || {
            is_waiting(other, signal, steps, step)
        })?;
    }
    println!("caught: {}", stop_of(other)?);
    Ok(())
}

/// Sends a signal until it has taken effect: a process that is about to wait may miss the first.
fn is_waiting(other: Pid, signal: Signal, steps: &AtomicU64, step: u64) -> bool {
    if steps.load(Ordering::SeqCst) < step {
        let _ = kill(other, signal);
    }
    steps.load(Ordering::SeqCst) >= step
}

/// Runs as session leader with a controlling terminal and groups on it.
fn with_a_terminal() -> Result<(), ProbeError> {
    setsid().named("setsid")?;
    let (_master, terminal) = terminal()?;
    // SAFETY: it takes no address.
    let taken = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) };
    Errno::result(taken).named("a terminal")?;
    let take = |what: &'static str, prepare: fn()| takes_terminal(&terminal, what, prepare);
    take("blocked", || mask(libc::SIG_BLOCK, libc::SIGTTOU))?;
    take("ignored", || {
        // SAFETY: it is ignored.
        unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
    })?;
    take("as it is", || default(libc::SIGTTOU))?;
    reads_in_the_background(&terminal)
}

/// Both ends of a terminal.
fn terminal() -> Result<(OwnedFd, OwnedFd), ProbeError> {
    let (mut master, mut slave) = (-1, -1);
    // SAFETY: both descriptors are this function's; the other arguments may be null.
    let made = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut slave,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    Errno::result(made).named("openpty")?;
    // SAFETY: they are new, and owned by nobody else.
    Ok(unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) })
}

/// Makes a group the terminal's foreground group.
fn set_foreground(terminal: &OwnedFd, group: Pid) -> Result<(), Errno> {
    // SAFETY: it takes a descriptor and a number.
    let result = unsafe { libc::tcsetpgrp(terminal.as_raw_fd(), group.as_raw()) };
    Errno::result(result).map(drop)
}

/// A child in a background group changes the terminal's foreground group.
fn takes_terminal(terminal: &OwnedFd, what: &'static str, prepare: fn()) -> Result<(), ProbeError> {
    let background = child(|_| {
        prepare();
        let taken = setpgid(Pid::from_raw(0), Pid::from_raw(0))
            .and_then(|()| set_foreground(terminal, getpid()));
        // SAFETY: it ends the process.
        unsafe { libc::_exit(taken.map_or_else(|errno| errno as i32, |()| 0)) }
    })?;
    let first = stop_of(background)?;
    println!("{what}: {first}");
    if first < 1000 {
        kill(background, Signal::SIGKILL).named("kill")?;
        waitpid(background, None).named("waiting")?;
    }
    mask(libc::SIG_BLOCK, libc::SIGTTOU);
    let back = set_foreground(terminal, getpid());
    mask(libc::SIG_UNBLOCK, libc::SIGTTOU);
    back.named("the terminal back")
}

/// A child in the background that reads is stopped, and reads when it is in the foreground.
fn reads_in_the_background(terminal: &OwnedFd) -> Result<(), ProbeError> {
    let reader = child(|_| {
        let read = setpgid(Pid::from_raw(0), Pid::from_raw(0))
            .and_then(|()| nix::unistd::read(terminal, &mut [0]).map(drop));
        // SAFETY: it ends the process.
        unsafe { libc::_exit(read.map_or_else(|errno| errno as i32, |()| 0)) }
    })?;
    let first = stop_of(reader)?;
    kill(reader, Signal::SIGCONT).named("kill")?;
    let second = stop_of(reader)?;
    kill(reader, Signal::SIGKILL).named("kill")?;
    waitpid(reader, None).named("waiting")?;
    println!("reading in the background: {first}, {second}");
    Ok(())
}
