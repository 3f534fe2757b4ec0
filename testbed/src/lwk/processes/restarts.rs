//! Calls that a signal interrupts: ignored signals do not extend their time, caught ones end them.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::signals::{catch, child, default, set_of};
use crate::lwk::{Named, ProbeError, call};

/// Duration of each call, in ms.
const TIME_MS: u64 = 600;
/// Signals for each call: if the duration started again with each, the call would take 20 s.
const DISTURBANCES: u32 = 200;
const INTERVAL: Duration = Duration::from_millis(100);
/// Time limit of a call: the machine may be slow.
const LIMIT: Duration = Duration::from_secs(12);

pub(crate) fn probe() -> Result<(), ProbeError> {
    undisturbed("nanosleep", |time, _| {
        call_with(libc::SYS_nanosleep, [time, 0, 0, 0])
    })?;
    undisturbed("clock_nanosleep", |time, _| {
        call_with(libc::SYS_clock_nanosleep, [1, 0, time, 0])
    })?;
    undisturbed("poll", |_, _| call_with(libc::SYS_poll, [0, 0, TIME_MS, 0]))?;
    undisturbed("ppoll", |time, _| {
        call_with(libc::SYS_ppoll, [0, 0, time, 0])
    })?;
    undisturbed("select", |_, value| select(value))?;
    undisturbed("futex", |time, _| {
        let word = 0_u32;
        call_with(libc::SYS_futex, [address_of(&word), 128, 0, time])
    })?;
    undisturbed("sigtimedwait", |time, _| {
        let set = set_of(libc::SIGUSR2);
        call_with(libc::SYS_rt_sigtimedwait, [address_of(&set), 0, time, 8])
    })?;
    let epoll = nix::sys::epoll::Epoll::new(nix::sys::epoll::EpollCreateFlags::empty());
    let epoll = epoll.named("epoll")?;
    let file = epoll.0.as_raw_fd() as u64;
    undisturbed("epoll_wait", |_, _| {
        let events = [0_u64; 2];
        call_with(
            libc::SYS_epoll_wait,
            [file, address_of(&events), 1, TIME_MS],
        )
    })?;
    ended_by_handlers()?;
    not_interrupted()
}

fn address_of<T>(value: &T) -> u64 {
    ptr::from_ref(value).expose_provenance() as u64
}

fn call_with(number: i64, arguments: [u64; 4]) -> i32 {
    let [a, b, c, d] = arguments;
    // SAFETY: calls that wait, and write to what their caller passes at most.
    let result = unsafe { call(number as u64, [a, b, c, d, 0, 0]) };
    result.map_or_else(|errno| -(errno as i32), |value| value as i32)
}

fn select(time: u64) -> i32 {
    // SAFETY: the time is the caller's, which the kernel changes.
    let result = unsafe { call(libc::SYS_select as u64, [0, 0, 0, 0, time, 0]) };
    result.map_or_else(|errno| -(errno as i32), |value| value as i32)
}

/// Sends a signal again and again that the process ignores.
fn disturb(whom: Pid) {
    for _ in 0..DISTURBANCES {
        std::thread::sleep(INTERVAL);
        if kill(whom, Signal::SIGWINCH).is_err() {
            return;
        }
    }
}

/// A call that ignored signals interrupt takes its time, and no more.
fn undisturbed(what: &str, wait: impl FnOnce(u64, u64) -> i32) -> Result<(), ProbeError> {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: (TIME_MS * 1_000_000) as i64,
    };
    let value = libc::timeval {
        tv_sec: 0,
        tv_usec: (TIME_MS * 1000) as i64,
    };
    let disturber = child(disturb)?;
    let began = Instant::now();
    let result = wait(address_of(&time), address_of(&value));
    let took = began.elapsed();
    kill(disturber, Signal::SIGKILL).named("kill")?;
    waitpid(disturber, None).named("waiting")?;
    let right = took >= Duration::from_millis(TIME_MS) && took < LIMIT;
    match right {
        true => println!("{what}: {result}"),
        false => println!("{what}: {result} after {took:?}"),
    }
    Ok(())
}

/// Calls that wait for nothing are never interrupted, however many signals come.
fn not_interrupted() -> Result<(), ProbeError> {
    const CALLS: u32 = 1000;
    const SIGNALS_MIN: u32 = 20;
    static HANDLED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: i32) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
    let handler = SigHandler::Handler(count);
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler only adds to a counter.
    let before = unsafe { sigaction(Signal::SIGALRM, &action) }.named("sigaction")?;
    let mut timer = set_timer(Duration::from_millis(3));
    let path = c"/proc/self/no such file".as_ptr().expose_provenance() as u64;
    let (mut calls, mut interrupted) = (0, 0);
    while timer.is_ok() && (calls < CALLS || HANDLED.load(Ordering::Relaxed) < SIGNALS_MIN) {
        calls += 1;
        let result = call_with(libc::SYS_access, [path, 0, 0, 0]);
        interrupted += u32::from(result != -libc::ENOENT);
    }
    timer = timer.and_then(|()| set_timer(Duration::ZERO));
    // SAFETY: the action before.
    unsafe { sigaction(Signal::SIGALRM, &before) }.named("sigaction")?;
    println!("interrupted without having waited: {interrupted}");
    timer
}

/// Has the process be sent SIGALRM at an interval; zero ends this.
fn set_timer(interval: Duration) -> Result<(), ProbeError> {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: interval.as_micros() as i64,
    };
    let timer = libc::itimerval {
        it_interval: time,
        it_value: time,
    };
    // SAFETY: it reads the timer's value.
    let result = unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, ptr::null_mut()) };
    Errno::result(result).map(drop).named("setitimer")
}

/// A handler without `SA_RESTART` ends the call, each time.
fn ended_by_handlers() -> Result<(), ProbeError> {
    const ROUNDS: u32 = 12;
    catch(libc::SIGWINCH, 0)?;
    let long = libc::timespec {
        tv_sec: 8,
        tv_nsec: 0,
    };
    let disturber = child(disturb)?;
    let ends = (0..ROUNDS).map(|_| call_with(libc::SYS_nanosleep, [address_of(&long), 0, 0, 0]));
    let ended = ends.filter(|&result| result == -libc::EINTR).count();
    kill(disturber, Signal::SIGKILL).named("kill")?;
    waitpid(disturber, None).named("waiting")?;
    default(libc::SIGWINCH);
    println!("ended by a handler: {ended} of {ROUNDS}");
    Ok(())
}
