//! Actions at real-time priority, alone on their core.

#![allow(unsafe_code, reason = "the system calls have no safe wrapper here")]

use nix::errno::Errno;
use nix::libc;

/// The core. Any of the base's will do, as long as the kernel starts work where it is asked for.
const CORE: usize = 2;

/// Runs `act` on a core without any other thread, kernel threads included. It should be short: the
/// base misses the core.
///
/// # Errors
/// The system's error.
pub(super) fn alone_on_a_core<T: Send>(act: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| become_real_time().map(|()| act()));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Binds the calling thread to the core, with the highest real-time priority.
fn become_real_time() -> Result<(), Errno> {
    // SAFETY: a set of no cores is all zeros.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number lies in the set.
    unsafe { libc::CPU_SET(CORE, &mut cores) };
    // SAFETY: it reads the set, whose size is passed, and changes the calling thread.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) };
    Errno::result(answer)?;
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: it reads the structure, and changes the calling thread.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    Errno::result(answer).map(drop)
}
