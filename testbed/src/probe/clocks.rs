//! Clocks that are read without a call, beside what the base's kernel says of the time.

use std::mem::zeroed;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;
use nix::time::{ClockId, clock_gettime};

use super::{Named, ProbeError, call};

/// How far a clock may be off: its rate is what the base has measured, and the base corrects its own.
const APART_NS: u64 = 2_000_000;
const NS_PER_US: u64 = 1000;
const ROUNDS: u64 = 2000;

pub(super) fn probe() -> Result<(), ProbeError> {
    for _ in 0..20 {
        is_the_time()?;
    }
    println!("the time is the base's");
    goes_on_everywhere()
}

fn now_ns(clock: ClockId) -> Result<u64, ProbeError> {
    let now = clock_gettime(clock).named("clock_gettime")?;
    Ok((now.tv_sec() * 1_000_000_000 + now.tv_nsec()).cast_unsigned())
}

/// The realtime clock as the base has it: of a call that is delegated.
fn base_now_ns() -> Result<u64, ProbeError> {
    // SAFETY: all zero it asks for nothing but to be told.
    let mut told: libc::timex = unsafe { zeroed() };
    let to = (&raw mut told).expose_provenance() as u64;
    // SAFETY: the structure is written and not kept.
    unsafe { call(libc::SYS_adjtimex as u64, [to, 0, 0, 0, 0, 0]) }.named("adjtimex")?;
    let is_in_ns = told.status & libc::STA_NANO != 0;
    let part = told.time.tv_usec.cast_unsigned() * if is_in_ns { 1 } else { NS_PER_US };
    Ok(told.time.tv_sec.cast_unsigned() * 1_000_000_000 + part)
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

/// Threads on all cores read it by turns: it never goes back.
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
