//! Robust locks in shared memory, whose owner is killed.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;

use crate::lwk::processes::signals::{child, wait_until};
use crate::lwk::{Named, ProbeError};

/// Memory that processes share.
struct Shared {
    lock: libc::pthread_mutex_t,
    /// Progress of the owner.
    step: AtomicU32,
}

pub(crate) fn probe() -> Result<(), ProbeError> {
    for protocol in [libc::PTHREAD_PRIO_NONE, libc::PTHREAD_PRIO_INHERIT] {
        for kills in [true, false] {
            let found = holder_ends(protocol, kills)?;
            println!("killed: {kills}, {found:?}");
        }
    }
    Ok(())
}

fn shared(protocol: c_int) -> Result<*mut Shared, ProbeError> {
    let size = NonZeroUsize::new(size_of::<Shared>()).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let shared = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_SHARED) };
    let shared = shared.named("mmap")?.as_ptr().cast::<Shared>();
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    // SAFETY: attributes are initialised before they are used, the lock before anybody else uses
    // it.
    unsafe {
        libc::pthread_mutexattr_init(attributes.as_mut_ptr());
        libc::pthread_mutexattr_setprotocol(attributes.as_mut_ptr(), protocol);
        libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutex_init(&raw mut (*shared).lock, attributes.as_ptr());
    }
    Ok(shared)
}

/// Ends a process that owns a lock: by a signal, or by exit of another of its threads. Returns the
/// results of the next owner's calls.
fn holder_ends(protocol: c_int, kills: bool) -> Result<[c_int; 3], ProbeError> {
    let shared = shared(protocol)?;
    // SAFETY: it is never unmapped.
    let (lock, step) = unsafe { (&raw mut (*shared).lock, &(*shared).step) };
    let holder = child(|_| hold(Shared::address(shared), kills))?;
    wait_until("the holder", || step.load(Ordering::SeqCst) == 1)?;
    if kills {
        kill(holder, Signal::SIGKILL).named("kill")?;
    } else {
        step.store(2, Ordering::SeqCst);
    }
    // SAFETY: the lock has been initialised, and is used as such only.
    let found = unsafe {
        let found = lock_in_time(lock);
        [
            found,
            libc::pthread_mutex_consistent(lock),
            libc::pthread_mutex_unlock(lock),
        ]
    };
    waitpid(holder, None).named("waiting")?;
    Ok(found)
}

/// # Safety
/// The lock has been initialised.
unsafe fn lock_in_time(lock: *mut libc::pthread_mutex_t) -> c_int {
    // SAFETY: all zero is a time.
    let mut limit: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the time is this function's; the lock is the caller's promise.
    unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut limit);
        limit.tv_sec += 10;
        libc::pthread_mutex_timedlock(lock, &raw const limit)
    }
}

impl Shared {
    fn address(shared: *mut Self) -> usize {
        shared.expose_provenance()
    }
}

/// Owns the lock until it is killed, or ends the process from another thread.
fn hold(address: usize, kills: bool) {
    let locks = move || {
        let shared = std::ptr::with_exposed_provenance_mut::<Shared>(address);
        // SAFETY: it is mapped, and initialised.
        unsafe {
            libc::pthread_mutex_lock(&raw mut (*shared).lock);
            (*shared).step.store(1, Ordering::SeqCst);
        }
        loop {
            std::thread::park();
        }
    };
    if kills {
        locks();
    }
    std::thread::spawn(locks);
    let shared = std::ptr::with_exposed_provenance_mut::<Shared>(address);
    // SAFETY: as above.
    let step = unsafe { &(*shared).step };
    let _ = wait_until("the end", || step.load(Ordering::SeqCst) == 2);
}
