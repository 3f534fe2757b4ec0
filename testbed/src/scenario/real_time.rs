//! Something done at a priority in real time: its core does nothing else meanwhile.

#![allow(unsafe_code, reason = "the system calls have no safe wrapper here")]

use nix::errno::Errno;
use nix::libc;

/// The core. Any that is the base's will do, as long as the kernel starts work where it is asked for.
const CORE: usize = 2;

/// Does something on a core on which meanwhile runs nothing else, no thread of the kernel either. To
/// be done soon: the base misses the core.
///
/// # Errors
/// What the system answered.
pub(super) fn alone_on_a_core<T: Send>(act: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| rise().map(|()| act()));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Binds the calling thread to the core, and puts it before all others there.
fn rise() -> Result<(), Errno> {
    // SAFETY: a set of no cores is all zeros.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number lies in the set.
    unsafe { libc::CPU_SET(CORE, &mut cores) };
    // SAFETY: it reads the set, whose size is told, and changes the calling thread.
    let answer = unsafe { libc::sched_setaffinity(0, size_of_val(&cores), &raw const cores) };
    Errno::result(answer)?;
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: it reads the structure, and changes the calling thread.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
    Errno::result(answer).map(drop)
}
