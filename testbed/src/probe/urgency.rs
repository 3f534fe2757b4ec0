//! Threads that are as urgent as who waits for them: without that the probe sees others go before.

use std::mem::{size_of_val, zeroed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, sleep, yield_now};
use std::time::{Duration, Instant};

use nix::libc;

use super::ProbeError;
use super::threads::Lock;

/// How long one who would not let others go on keeps the core.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn probe() -> Result<(), ProbeError> {
    inversion(false);
    inversion(true);
    die_awaited();
    Ok(())
}

/// The calling thread goes to the first core, and is of that real-time priority.
fn become_urgent(priority: i32) -> bool {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: it is read and not kept.
    let is_urgent = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) };
    stay_on_first_core() && is_urgent == 0
}

/// Whether the calling thread could go there.
pub(super) fn stay_on_first_core() -> bool {
    // SAFETY: a set of bits, all of them clear, then read and not kept.
    unsafe {
        let mut cores: libc::cpu_set_t = zeroed();
        libc::CPU_SET(0, &mut cores);
        libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) == 0
    }
}

struct Scene {
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

/// Goes on when it is set; lets the less urgent run meanwhile.
fn sleep_until(flag: &AtomicBool) {
    while !is_set(flag) {
        sleep(Duration::from_millis(1));
    }
}

/// All on one core: one of priority 4 waits for what one of priority 1 has (with `chained`: for what one of
/// priority 2 has, who waits for that), and one of priority 3 does nothing but keep the core.
fn inversion(chained: bool) {
    let lock = || Lock::new(libc::PTHREAD_PRIO_INHERIT, libc::PTHREAD_MUTEX_STALLED);
    let scene = Scene {
        ready: AtomicBool::new(false),
        first: lock(),
        second: lock(),
        held: AtomicBool::new(false),
        chained: AtomicBool::new(!chained),
        started: AtomicBool::new(false),
        ran: AtomicBool::new(false),
        done: AtomicBool::new(false),
    };
    let scene = &scene;
    std::thread::scope(|scope| {
        scope.spawn(move || holds(scene));
        if chained {
            scope.spawn(move || holds_and_waits(scene));
        }
        scope.spawn(move || waits(scope, scene, chained));
        set(&scene.ready);
    });
}

fn holds(scene: &Scene) {
    let urgent = become_urgent(1);
    // Who begins all others may be on this core, and is not urgent.
    sleep_until(&scene.ready);
    scene.first.lock();
    set(&scene.held);
    while !is_set(&scene.started) {
        yield_now();
    }
    scene.first.unlock();
    let began = Instant::now();
    while !is_set(&scene.ran) && began.elapsed() < PATIENCE {
        std::hint::spin_loop();
    }
    let before = is_set(&scene.ran);
    sleep_until(&scene.done);
    println!("the last one is urgent {urgent}, and no more than it was: {before}");
}

fn holds_and_waits(scene: &Scene) {
    become_urgent(2);
    sleep_until(&scene.held);
    scene.second.lock();
    set(&scene.chained);
    scene.first.lock();
    scene.first.unlock();
    scene.second.unlock();
}

fn waits<'a>(scope: &'a Scope<'a, '_>, scene: &'a Scene, chained: bool) {
    become_urgent(4);
    sleep_until(&scene.held);
    sleep_until(&scene.chained);
    // It begins as urgent as this one, and so does not run before this one waits.
    scope.spawn(move || keeps_the_core(scene));
    let lock = if chained { &scene.second } else { &scene.first };
    lock.lock();
    println!("chained {chained}: got it first: {}", !is_set(&scene.ran));
    lock.unlock();
    set(&scene.done);
}

fn keeps_the_core(scene: &Scene) {
    set(&scene.started);
    become_urgent(3);
    set(&scene.ran);
    let began = Instant::now();
    while !is_set(&scene.done) && began.elapsed() < PATIENCE {
        std::hint::spin_loop();
    }
}

/// Who waits for a holder that ends gets the lock, and is told so.
fn die_awaited() {
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
                // It says that it waits a moment before it does.
                sleep(Duration::from_millis(20));
            });
            waiting.join().unwrap_or_default()
        });
        println!("a holder has ended while another waited: {found:?}");
    }
}
