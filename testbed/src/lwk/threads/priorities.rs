//! Priority inheritance: without it the probe sees other threads run first.

use std::mem::{size_of_val, zeroed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, sleep, yield_now};
use std::time::{Duration, Instant};

use nix::libc;

use super::synchronisation::Lock;
use crate::lwk::ProbeError;

/// Time for which a thread that ignores priorities would keep the core.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn probe() -> Result<(), ProbeError> {
    inversion(false);
    inversion(true);
    die_as_owner();
    Ok(())
}

/// Moves the calling thread to the first core, with that real-time priority.
fn become_real_time(priority: i32) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: it is read and not kept.
    let is_real_time =
        unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    stay_on_first_core() && is_real_time == 0
}

/// Pins the calling thread to the first core; whether that succeeded.
pub(crate) fn stay_on_first_core() -> bool {
    // SAFETY: a set of bits, all of them clear, then read and not kept.
    unsafe {
        let mut cores: libc::cpu_set_t = zeroed();
        libc::CPU_SET(0, &mut cores);
        libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) == 0
    }
}

struct Inversion {
    ready: AtomicBool,
    first: Box<Lock>,
    second: Box<Lock>,
    held: AtomicBool,
    chained: AtomicBool,
    started: AtomicBool,
    ran: AtomicBool,
    done: AtomicBool,
}

fn set(flag: &AtomicBool) {
    flag.store(true, Ordering::SeqCst);
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst)
}

/// Waits until the flag is set, letting threads of lower priority run.
fn sleep_until(flag: &AtomicBool) {
    while !is_set(flag) {
        sleep(Duration::from_millis(1));
    }
}

/// All on one core: a thread of priority 4 waits for a lock that one of priority 1 owns (with
/// `chained`: that one of priority 2 owns, which waits for that), and one of priority 3 keeps the
/// core.
fn inversion(chained: bool) {
    let lock = || Lock::new(libc::PTHREAD_PRIO_INHERIT, libc::PTHREAD_MUTEX_STALLED);
    let inversion = Inversion {
        ready: AtomicBool::new(false),
        first: lock(),
        second: lock(),
        held: AtomicBool::new(false),
        chained: AtomicBool::new(!chained),
        started: AtomicBool::new(false),
        ran: AtomicBool::new(false),
        done: AtomicBool::new(false),
    };
    let inversion = &inversion;
    std::thread::scope(|scope| {
        scope.spawn(move || holds(inversion));
        if chained {
            scope.spawn(move || holds_and_waits(inversion));
        }
        scope.spawn(move || waits(scope, inversion, chained));
        set(&inversion.ready);
    });
}

fn holds(inversion: &Inversion) {
    let real_time = become_real_time(1);
    // The thread that starts the others may be on this core, and has no real-time priority.
    sleep_until(&inversion.ready);
    inversion.first.lock();
    set(&inversion.held);
    while !is_set(&inversion.started) {
        yield_now();
    }
    inversion.first.unlock();
    let began = Instant::now();
    while !is_set(&inversion.ran) && began.elapsed() < TIMEOUT {
        std::hint::spin_loop();
    }
    let before = is_set(&inversion.ran);
    sleep_until(&inversion.done);
    println!(
        "set to real time: {real_time}; after unlocking it ran before the middle one: {before}"
    );
}

fn holds_and_waits(inversion: &Inversion) {
    become_real_time(2);
    sleep_until(&inversion.held);
    inversion.second.lock();
    set(&inversion.chained);
    inversion.first.lock();
    inversion.first.unlock();
    inversion.second.unlock();
}

fn waits<'a>(scope: &'a Scope<'a, '_>, inversion: &'a Inversion, chained: bool) {
    become_real_time(4);
    sleep_until(&inversion.held);
    sleep_until(&inversion.chained);
    // It starts with this thread's priority, and so does not run before this one waits.
    scope.spawn(move || keeps_the_core(inversion));
    let lock = if chained {
        &inversion.second
    } else {
        &inversion.first
    };
    lock.lock();
    println!(
        "chained {chained}: got it first: {}",
        !is_set(&inversion.ran)
    );
    lock.unlock();
    set(&inversion.done);
}

fn keeps_the_core(inversion: &Inversion) {
    set(&inversion.started);
    become_real_time(3);
    set(&inversion.ran);
    let began = Instant::now();
    while !is_set(&inversion.done) && began.elapsed() < TIMEOUT {
        std::hint::spin_loop();
    }
}

/// A waiter of a lock whose owner ends gets the lock, and is told so.
fn die_as_owner() {
    for protocol in [libc::PTHREAD_PRIO_NONE, libc::PTHREAD_PRIO_INHERIT] {
        let lock = Lock::new(protocol, libc::PTHREAD_MUTEX_ROBUST);
        let (held, asked) = (AtomicBool::new(false), AtomicBool::new(false));
        let found = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                sleep_until(&held);
                set(&asked);
                [lock.lock(), lock.make_consistent(), lock.unlock()]
            });
            scope.spawn(|| {
                lock.lock();
                set(&held);
                sleep_until(&asked);
                // It reports that it waits shortly before it does.
                sleep(Duration::from_millis(20));
            });
            waiting.join().unwrap_or_default()
        });
        println!("a holder has ended while another waited: {found:?}");
    }
}
