//! Synchronisation of threads: locks with priority inheritance, robust locks, futex requeue,
//! barriers.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;

use crate::lwk::{Named, ProbeError, call};

pub(crate) fn probe() -> Result<(), ProbeError> {
    compute()?;
    inherit()?;
    die_holding()?;
    requeue()?;
    barrier()
}

/// Computes in threads with channels; one of them panics, which must not affect the others.
fn compute() -> Result<(), ProbeError> {
    let (sender, receiver) = mpsc::channel();
    let threads: Vec<_> = (1..=4_u64)
        .map(|factor| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let sum: u64 = (0..20_000).map(|at: u64| at * factor % 7).sum();
                sender.send(sum).ok();
                assert_ne!(factor, 3, "as it is to be");
            })
        })
        .collect();
    drop(sender);
    let mut sums: Vec<u64> = receiver.iter().collect();
    sums.sort_unstable();
    let ended = threads.into_iter().map(std::thread::JoinHandle::join);
    let panicked = ended.filter(Result::is_err).count();
    println!("{sums:?}, {panicked} panicked");
    Ok(())
}

/// A lock of the C library with attributes.
pub(crate) struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: it is a lock: the C library changes it as threads may.
unsafe impl Sync for Lock {}

impl Lock {
    pub(crate) fn new(protocol: i32, robust: i32) -> Box<Self> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let lock = Box::new(Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
        // SAFETY: attributes are initialised before they are used, the lock before anybody else
        // uses it.
        unsafe {
            libc::pthread_mutexattr_init(attributes.as_mut_ptr());
            libc::pthread_mutexattr_setprotocol(attributes.as_mut_ptr(), protocol);
            libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), robust);
            libc::pthread_mutex_init(lock.0.get(), attributes.as_ptr());
        }
        lock
    }

    pub(crate) fn lock(&self) -> i32 {
        // SAFETY: it has been initialised, and does not move.
        unsafe { libc::pthread_mutex_lock(self.0.get()) }
    }

    pub(crate) fn unlock(&self) -> i32 {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) }
    }

    pub(crate) fn make_consistent(&self) -> i32 {
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_consistent(self.0.get()) }
    }
}

fn inherit() -> Result<(), ProbeError> {
    let lock = Lock::new(libc::PTHREAD_PRIO_INHERIT, libc::PTHREAD_MUTEX_STALLED);
    // A read and a write, atomic only under the lock.
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    lock.lock();
                    let seen = count.load(Ordering::Relaxed);
                    std::thread::yield_now();
                    count.store(seen + 1, Ordering::Relaxed);
                    lock.unlock();
                }
            });
        }
    });
    println!(
        "{} under a lock that inherits",
        count.load(Ordering::Relaxed)
    );
    Ok(())
}

fn die_holding() -> Result<(), ProbeError> {
    for protocol in [libc::PTHREAD_PRIO_NONE, libc::PTHREAD_PRIO_INHERIT] {
        let lock = Lock::new(protocol, libc::PTHREAD_MUTEX_ROBUST);
        let found = std::thread::scope(|scope| {
            let holder = scope.spawn(|| lock.lock());
            let held = holder.join().unwrap_or(-1);
            let found = [held, lock.lock(), lock.make_consistent(), lock.unlock()];
            [found, [lock.lock(), lock.unlock(), 0, 0]]
        });
        println!("a holder has ended: {found:?}");
    }
    Ok(())
}

const WAIT: u64 = 0;
const WAKE: u64 = 1;
const CMP_REQUEUE: u64 = 4;

fn futex(word: &AtomicU32, operation: u64, value: u64, more: [u64; 3]) -> Result<u64, Errno> {
    let [fourth, fifth, sixth] = more;
    let arguments = [
        word.as_ptr().expose_provenance() as u64,
        operation,
        value,
        fourth,
        fifth,
        sixth,
    ];
    // SAFETY: it reads words and a time that outlive it.
    unsafe { call(libc::SYS_futex as u64, arguments) }
}

/// Three threads wait for a word. One is woken, two are requeued to another word and woken there.
fn requeue() -> Result<(), ProbeError> {
    let (from, to, asleep) = (AtomicU32::new(5), AtomicU32::new(0), AtomicU32::new(0));
    let second = to.as_ptr().expose_provenance() as u64;
    std::thread::scope(|scope| {
        let wait = || {
            asleep.fetch_add(1, Ordering::Relaxed);
            futex(&from, WAIT, 5, [0; 3])
        };
        let waiting = [(); 3].map(|()| scope.spawn(wait));
        let wrong = futex(&from, CMP_REQUEUE, 1, [2, second, 4]);
        let mut done = 0;
        let began = Instant::now();
        // They report that they wait shortly before they do.
        while done < 3 && began.elapsed() < Duration::from_secs(20) {
            done += futex(&from, CMP_REQUEUE, u64::from(done == 0), [2, second, 5]).unwrap_or(0);
            std::thread::sleep(Duration::from_millis(1));
        }
        let woken = futex(&to, WAKE, 9, [0; 3]);
        println!("requeued: {wrong:?}, {done}, {woken:?}");
        let ended = waiting.map(|thread| thread.join().is_ok_and(|result| result == Ok(0)));
        println!("all woken: {ended:?}");
    });
    Ok(())
}

fn barrier() -> Result<(), ProbeError> {
    const REGISTER: u64 = 16;
    const EXPEDITED: u64 = 8;
    for command in [REGISTER, EXPEDITED] {
        // SAFETY: it has no effect but an order of memory accesses.
        let done = unsafe { call(libc::SYS_membarrier as u64, [command, 0, 0, 0, 0, 0]) };
        println!("membarrier: {}", done.named("membarrier")?);
    }
    Ok(())
}
