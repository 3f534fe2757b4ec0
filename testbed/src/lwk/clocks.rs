//! Clocks that are read without a system call, compared with the time of the base's kernel.

use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::time::{ClockId, clock_gettime};

use super::{Named, ProbeError, call, in_a_child};

/// Largest accepted difference of two clocks.
const APART_NS: u64 = 100_000;
/// Time to watch the clock at each rate: it would be off by a tenth of that if it did not follow.
const WATCHED_NS: u64 = 200_000_000;
const NS_PER_US: u64 = 1000;
const ROUNDS: u64 = 2000;

pub(super) fn probe() -> Result<(), ProbeError> {
    for _ in 0..20 {
        is_the_time()?;
    }
    println!("the time is the base's");
    goes_on_everywhere()?;
    follows_corrections()
}

fn now_ns(clock: ClockId) -> Result<u64, ProbeError> {
    let now = clock_gettime(clock).named("clock_gettime")?;
    Ok((now.tv_sec() * 1_000_000_000 + now.tv_nsec()).cast_unsigned())
}

/// State of the base's clock, after setting its tick if given: a delegated call.
fn adjust(tick_us: Option<i64>) -> Result<libc::timex, ProbeError> {
    // SAFETY: all zero is a valid request, which changes nothing.
    let mut answer: libc::timex = unsafe { zeroed() };
    if let Some(tick_us) = tick_us {
        (answer.modes, answer.tick) = (libc::ADJ_TICK, tick_us);
    }
    let to = (&raw mut answer).expose_provenance() as u64;
    // SAFETY: the structure is written and not kept.
    unsafe { call(libc::SYS_adjtimex as u64, [to, 0, 0, 0, 0, 0]) }.named("adjtimex")?;
    Ok(answer)
}

/// Realtime clock of the base.
fn base_now_ns() -> Result<u64, ProbeError> {
    let answer = adjust(None)?;
    let is_in_ns = answer.status & libc::STA_NANO != 0;
    let part = answer.time.tv_usec.cast_unsigned() * if is_in_ns { 1 } else { NS_PER_US };
    Ok(answer.time.tv_sec.cast_unsigned() * 1_000_000_000 + part)
}

fn is_the_time() -> Result<(), ProbeError> {
    let before = now_ns(ClockId::CLOCK_REALTIME)?;
    let base = base_now_ns()?;
    let after = now_ns(ClockId::CLOCK_REALTIME)?;
    let is_between = before.saturating_sub(APART_NS) <= base && base <= after + APART_NS;
    is_between.then_some(()).ok_or_else(|| {
        ProbeError::Wrong(format!(
            "{before} ns, the base's {base} ns, then {after} ns"
        ))
    })
}

/// Threads on all cores read the clock in turn: it never goes back.
fn goes_on_everywhere() -> Result<(), ProbeError> {
    let latest = AtomicU64::new(0);
    let read = || {
        for _ in 0..ROUNDS {
            let before = latest.load(Ordering::SeqCst);
            let now = now_ns(ClockId::CLOCK_MONOTONIC)?;
            if now < before {
                return Err(ProbeError::Wrong(format!("{now} ns after {before} ns")));
            }
            latest.fetch_max(now, Ordering::SeqCst);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers = [(); 3].map(|()| scope.spawn(read));
        let panicked = || ProbeError::Wrong("a reader panicked".to_owned());
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().map_err(|_| panicked())?)
    })?;
    println!("and goes on everywhere");
    Ok(())
}

/// While the base's clock runs slower or faster by a tenth, this one does, too, and never steps
/// back: not even when another program starts.
fn follows_corrections() -> Result<(), ProbeError> {
    let usual = adjust(None)?.tick;
    let slow_and_fast = [usual * 9 / 10, usual * 11 / 10];
    let followed = slow_and_fast.into_iter().try_for_each(|tick_us| {
        adjust(Some(tick_us))?;
        keeps_up()
    });
    adjust(Some(usual))?;
    followed?;
    println!("and is corrected as the base's");
    Ok(())
}

/// Smallest and largest possible difference between the base's realtime clock and this monotonic
/// one.
fn distance_ns() -> Result<(u64, u64), ProbeError> {
    let before = now_ns(ClockId::CLOCK_MONOTONIC)?;
    let base = base_now_ns()?;
    let after = now_ns(ClockId::CLOCK_MONOTONIC)?;
    Ok((base - after, base - before))
}

fn keeps_up() -> Result<(), ProbeError> {
    let (least, most) = distance_ns()?;
    let mut latest = now_ns(ClockId::CLOCK_MONOTONIC)?;
    let end = latest + WATCHED_NS;
    in_a_child(|| ())?;
    while latest < end {
        let now = now_ns(ClockId::CLOCK_MONOTONIC)?;
        if now < latest {
            return Err(ProbeError::Wrong(format!("{now} ns after {latest} ns")));
        }
        latest = now;
    }
    let (least_then, most_then) = distance_ns()?;
    let is_same = least_then <= most + APART_NS && least <= most_then + APART_NS;
    is_same.then_some(()).ok_or_else(|| {
        ProbeError::Wrong(format!(
            "it was {least} to {most} ns behind the base's clock, then {least_then} to {most_then} ns"
        ))
    })
}
