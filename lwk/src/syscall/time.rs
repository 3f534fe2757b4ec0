//! Time calls, by the base's clocks.

use alloc::boxed::Box;
use core::sync::atomic::Ordering;

use crate::hw::clock;
use crate::model::errno::Errno;
use crate::model::number;
use crate::syscall::delegate::{delegate, finish};
use crate::task::flow::Flow;
use crate::task::thread::Thread;

const NS_PER_S: u64 = 1_000_000_000;
/// Clocks that are read here.
const REALTIME: u64 = 0;
const MONOTONIC: u64 = 1;
const PROCESS_CPU: u64 = 2;
const THREAD_CPU: u64 = 3;
const REALTIME_COARSE: u64 = 5;
const MONOTONIC_COARSE: u64 = 6;

/// clock_gettime(2). Other clocks are delegated.
pub(super) fn clock_gettime(mut thread: Box<Thread>, a: [u64; 6]) -> Flow {
    let [clock, to, ..] = a;
    let result = match own_clock_ns(&thread, clock) {
        Some(Ok(ns)) => write_pair(&mut thread, to, ns / NS_PER_S, ns % NS_PER_S),
        Some(Err(error)) => Err(error),
        None => return delegate(thread, number::CLOCK_GETTIME, a),
    };
    finish(thread, result)
}

/// Returns the time of a clock; `None` if the base has to read it.
fn own_clock_ns(thread: &Thread, clock: u64) -> Option<Result<u64, Errno>> {
    let times = thread.process.pages().area().clock();
    Some(Ok(match clock as u32 as u64 {
        REALTIME | REALTIME_COARSE => times.realtime_ns(times.read_at()),
        MONOTONIC | MONOTONIC_COARSE => times.monotonic_ns(times.read_at()),
        PROCESS_CPU => process_ns(thread),
        THREAD_CPU => thread_ns(thread),
        other if (other as i32) < 0 => return Some(cpu_clock_ns(thread, other as i32)),
        _ => return None,
    }))
}

/// Returns the CPU time of a thread.
fn thread_ns(thread: &Thread) -> u64 {
    let ticks = thread.handle.cpu_ticks.load(Ordering::Relaxed);
    clock::ticks_to_ns(ticks, clock::tsc_khz())
}

/// Returns the CPU time of all threads of the program.
fn process_ns(thread: &Thread) -> u64 {
    let ticks = thread.process.cpu_ticks.load(Ordering::Relaxed);
    clock::ticks_to_ns(ticks, clock::tsc_khz())
}

/// Returns the CPU time of the thread or process of a clock id: the complement of its id, then
/// three bits (include/linux/posix-timers.h of Linux).
fn cpu_clock_ns(thread: &Thread, clock: i32) -> Result<u64, Errno> {
    const OF_THREAD: i32 = 4;
    let id = u64::from(!(clock >> 3) as u32);
    match clock & OF_THREAD {
        0 if id == 0 || id == thread.process.pages().pid() => Ok(process_ns(thread)),
        OF_THREAD if id == 0 || id == thread.id => Ok(thread_ns(thread)),
        _ => Err(Errno::EINVAL),
    }
}

/// getrusage(2). The base reports what the proxy used for the program; the program's own CPU time
/// is inserted here.
pub(super) fn getrusage(thread: Box<Thread>, [who, to, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = report_usage(&mut thread, who, to).await;
        finish(thread, result)
    })
}

async fn report_usage(thread: &mut Thread, who: u64, to: u64) -> Result<u64, Errno> {
    const OF_PROCESS: i32 = 0;
    const OF_THREAD: i32 = 1;
    let own_ns = match who as i32 {
        OF_PROCESS => Some(process_ns(thread)),
        OF_THREAD => Some(thread_ns(thread)),
        _ => None,
    };
    thread
        .remote_syscall(number::GETRUSAGE, [who, to, 0, 0, 0, 0])
        .await?;
    match own_ns {
        Some(ns) => write_pair(thread, to, ns / NS_PER_S, ns % NS_PER_S / 1000),
        None => Ok(0),
    }
}

/// times(2), likewise.
pub(super) fn times(thread: Box<Thread>, [to, ..]: [u64; 6]) -> Flow {
    Flow::handler(thread, move |mut thread| async move {
        let result = report_times(&mut thread, to).await;
        finish(thread, result)
    })
}

async fn report_times(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    const NS_PER_TICK: u64 = NS_PER_S / 100;
    let now = thread
        .remote_syscall(number::TIMES, [to, 0, 0, 0, 0, 0])
        .await?;
    if to != 0 {
        let ticks = process_ns(thread) / NS_PER_TICK;
        thread.process.space().write(to, &ticks.to_le_bytes())?;
    }
    Ok(now)
}

/// gettimeofday(2). The time zone is always zero.
pub(super) fn gettimeofday(thread: &mut Thread, [to, zone, ..]: [u64; 6]) -> Result<u64, Errno> {
    if zone != 0 {
        thread.process.space().write(zone, &[0; 8])?;
    }
    let times = thread.process.pages().area().clock();
    let ns = times.realtime_ns(times.read_at());
    match to {
        0 => Ok(0),
        to => write_pair(thread, to, ns / NS_PER_S, ns % NS_PER_S / 1000),
    }
}

/// time(2).
pub(super) fn time(thread: &mut Thread, [to, ..]: [u64; 6]) -> Result<u64, Errno> {
    let times = thread.process.pages().area().clock();
    let seconds = times.realtime_ns(times.read_at()) / NS_PER_S;
    if to != 0 {
        thread.process.space().write(to, &seconds.to_le_bytes())?;
    }
    Ok(seconds)
}

fn write_pair(thread: &mut Thread, to: u64, first: u64, second: u64) -> Result<u64, Errno> {
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&first.to_le_bytes());
    pair[8..].copy_from_slice(&second.to_le_bytes());
    thread.process.space().write(to, &pair)?;
    Ok(0)
}
