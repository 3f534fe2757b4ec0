//! Calls about time, by the clocks that the base gives.

use crate::clock;
use crate::process::Thread;
use crate::process::errno::{Errno, of_result};

const NS_PER_S: u64 = 1_000_000_000;
const CLOCK_GETTIME: u64 = 228;
/// Clocks that are read here, by their numbers.
const REALTIME: u64 = 0;
const MONOTONIC: u64 = 1;
const MONOTONIC_RAW: u64 = 4;
const REALTIME_COARSE: u64 = 5;
const MONOTONIC_COARSE: u64 = 6;

/// clock_gettime(2). Of clocks that only the base has, it is asked.
pub(super) fn clock_gettime(thread: &mut Thread, clock: u64, to: u64) -> Result<u64, Errno> {
    let times = thread.process.pages().area().clock();
    let ns = match clock {
        REALTIME | REALTIME_COARSE => times.realtime_ns(clock::stamp()),
        MONOTONIC | MONOTONIC_COARSE | MONOTONIC_RAW => times.monotonic_ns(clock::stamp()),
        _ => {
            let asked = thread.ask(CLOCK_GETTIME, [clock, to, 0, 0, 0, 0]);
            return asked.map_or(Err(Errno::EINTR), |(result, _)| of_result(result));
        }
    };
    write_pair(thread, to, ns / NS_PER_S, ns % NS_PER_S)
}

/// gettimeofday(2).
pub(super) fn gettimeofday(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    let ns = thread
        .process
        .pages()
        .area()
        .clock()
        .realtime_ns(clock::stamp());
    match to {
        0 => Ok(0),
        to => write_pair(thread, to, ns / NS_PER_S, ns % NS_PER_S / 1000),
    }
}

/// time(2).
pub(super) fn time(thread: &mut Thread, to: u64) -> Result<u64, Errno> {
    let seconds = thread
        .process
        .pages()
        .area()
        .clock()
        .realtime_ns(clock::stamp())
        / NS_PER_S;
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
