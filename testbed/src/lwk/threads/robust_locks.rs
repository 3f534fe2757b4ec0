//! Robust locks in shared memory, whose owner ends.

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::mem::MaybeUninit;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;

use crate::lwk::processes::signals::{child, wait_until};
use crate::lwk::{Named, ProbeError};

/// Memory that processes share. The lock begins with its futex.
#[repr(C)]
struct Shared {
    lock: libc::pthread_mutex_t,
    /// Progress of the owner.
    step: AtomicU32,
    /// What the owner does while it has the lock.
    work: AtomicU64,
}

/// How the owner ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    /// Another of its threads ends the process.
    Exits,
    /// Its thread ends alone.
    ThreadExits,
    /// It executes another program.
    Executes,
}

const PROTOCOLS: [c_int; 2] = [libc::PTHREAD_PRIO_NONE, libc::PTHREAD_PRIO_INHERIT];
const ENDS: [End; 4] = [End::Killed, End::Exits, End::ThreadExits, End::Executes];
/// Under emulation, on a loaded computer.
const LOCK_LIMIT_S: i64 = 60;

/// Owners end in each way, of locks in anonymous memory and in that of a file.
pub(crate) fn probe() -> Result<(), ProbeError> {
    for protocol in PROTOCOLS {
        for end in ENDS {
            let found = holder_ends(anonymous()?, protocol, end)?;
            println!("{end:?}, anonymous: {found:?}");
            // There the base tells the waiters only when that program ends.
            if (protocol, end) != (libc::PTHREAD_PRIO_INHERIT, End::Executes) {
                let found = holder_ends(of_file(&file()?)?, protocol, end)?;
                println!("{end:?}, file: {found:?}");
            }
        }
    }
    Ok(())
}

/// Owns the lock in a file, and works, until it is killed.
pub(crate) fn hold(path: &str, protocol: &str) -> Result<(), ProbeError> {
    let protocol = match protocol {
        "none" => libc::PTHREAD_PRIO_NONE,
        "inherit" => libc::PTHREAD_PRIO_INHERIT,
        _ => return Err(ProbeError::Unknown),
    };
    let shared = of_file(&open(path)?)?;
    initialize(shared, protocol);
    // SAFETY: it is mapped, and initialised.
    let work = unsafe {
        libc::pthread_mutex_lock(&raw mut (*shared).lock);
        &(*shared).work
    };
    println!("holds");
    loop {
        work.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits for the lock in a file. Prints whether its owner has died, and works no more.
pub(crate) fn wait(path: &str) -> Result<(), ProbeError> {
    let shared = of_file(&open(path)?)?;
    // SAFETY: it is never unmapped; the owner has initialised the lock.
    let (lock, work) = unsafe { (&raw mut (*shared).lock, &(*shared).work) };
    // SAFETY: as above.
    let found = unsafe { lock_in_time(lock) };
    let before = work.load(Ordering::SeqCst);
    let (began, pause) = (Instant::now(), Duration::from_millis(50));
    while began.elapsed() < pause {
        std::hint::spin_loop();
    }
    let has_stopped = work.load(Ordering::SeqCst) == before;
    // SAFETY: as above.
    let found = [
        found,
        unsafe { libc::pthread_mutex_consistent(lock) },
        unsafe { libc::pthread_mutex_unlock(lock) },
    ];
    println!("{found:?}, the owner works no more: {has_stopped}");
    Ok(())
}

fn open(path: &str) -> Result<File, ProbeError> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|error| ProbeError::Wrong(format!("{path}: {error}")))
}

/// A new file in memory of the base, which has no name any more.
fn file() -> Result<File, ProbeError> {
    let wrong = |error: std::io::Error| ProbeError::Wrong(format!("a file: {error}"));
    let path = format!("/dev/shm/robust_locks.{}", std::process::id());
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(wrong)?;
    std::fs::remove_file(path).map_err(wrong)?;
    file.set_len(size_of::<Shared>() as u64).map_err(wrong)?;
    Ok(file)
}

fn anonymous() -> Result<*mut Shared, ProbeError> {
    let size = NonZeroUsize::new(size_of::<Shared>()).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let shared = unsafe { mmap_anonymous(None, size, protection, MapFlags::MAP_SHARED) };
    Ok(shared.named("mmap")?.as_ptr().cast())
}

fn of_file(file: &File) -> Result<*mut Shared, ProbeError> {
    let size = NonZeroUsize::new(size_of::<Shared>()).ok_or(ProbeError::Unknown)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: as above.
    let shared = unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, file, 0) };
    Ok(shared.named("mmap of a file")?.as_ptr().cast())
}

fn initialize(shared: *mut Shared, protocol: c_int) {
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
}

/// Ends the owner of a lock. Returns the results of the next owner's calls.
fn holder_ends(shared: *mut Shared, protocol: c_int, end: End) -> Result<[c_int; 3], ProbeError> {
    initialize(shared, protocol);
    // SAFETY: it is never unmapped.
    let (lock, step) = unsafe { (&raw mut (*shared).lock, &(*shared).step) };
    let holder = child(|_| own(shared.expose_provenance(), end))?;
    wait_until("the holder", || step.load(Ordering::SeqCst) == 1)?;
    if end == End::Killed {
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
    step.store(3, Ordering::SeqCst);
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
        limit.tv_sec += LOCK_LIMIT_S;
        libc::pthread_mutex_timedlock(lock, &raw const limit)
    }
}

/// Takes the lock in a thread of its own, and ends as it is told.
fn own(address: usize, end: End) {
    let shared = std::ptr::with_exposed_provenance_mut::<Shared>(address);
    // SAFETY: it is mapped, and initialised.
    let step = unsafe { &(*shared).step };
    let reaches = |wanted: u32| {
        let _ = wait_until("the next step", || step.load(Ordering::SeqCst) >= wanted);
    };
    let locks = move || {
        let shared = std::ptr::with_exposed_provenance_mut::<Shared>(address);
        // SAFETY: as above.
        unsafe { libc::pthread_mutex_lock(&raw mut (*shared).lock) };
        // SAFETY: as above.
        let step = unsafe { &(*shared).step };
        step.store(1, Ordering::SeqCst);
        if end == End::ThreadExits {
            let _ = wait_until("the end", || step.load(Ordering::SeqCst) >= 2);
            return;
        }
        loop {
            std::thread::park();
        }
    };
    match end {
        End::Killed => locks(),
        End::Exits => {
            std::thread::spawn(locks);
            reaches(2);
        }
        End::ThreadExits => {
            std::thread::spawn(locks);
            reaches(3);
        }
        End::Executes => {
            // SAFETY: as above.
            unsafe { libc::pthread_mutex_lock(&raw mut (*shared).lock) };
            step.store(1, Ordering::SeqCst);
            reaches(2);
            let _ = nix::unistd::execv(c"/bin/true", &[c"true"]);
        }
    }
}
