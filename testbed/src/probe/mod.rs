//! What `insula-probe` does: a static Rust program that makes system calls which no library makes,
//! or with arguments that no library would.

#![allow(unsafe_code, reason = "system calls are made by number")]

mod balance;
mod clocks;
mod closes;
mod crowd;
mod dump;
mod files;
mod fuzz;
mod jobs;
mod killed;
mod layout;
mod limits;
mod memory;
mod nested;
mod pins;
mod pointers;
mod processes;
mod proxy;
mod questions;
mod race;
mod registers;
mod restarts;
mod sequence;
mod shared;
mod signals;
mod threads;
mod urgency;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// Why a probe came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no such probe.
    #[error(
        "threads | memory | files | areas | limits | layout | place NAME | deep BYTES | processes | execute | leave | executed PID | closes | closed | urgency | sequence | registers | balance | crowd | signals | restarts | killed | jobs | stopped | questions | clocks | nested | dump START+SIZE... | race FILE ROUNDS | pins ROUNDS | pointers | proxy | fuzz SEED ROUNDS"
    )]
    Unknown,
    /// A call failed that should not.
    #[error("{what}: {errno}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// The error.
        errno: Errno,
    },
    /// The kernel did something wrong.
    #[error("{0}")]
    Wrong(String),
}

/// Does what the words say.
///
/// # Errors
/// [`ProbeError`].
pub fn run(words: &[String]) -> Result<(), ProbeError> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse().map_err(|_| ProbeError::Unknown);
    match words[..] {
        ["threads"] => threads::probe(),
        ["memory"] => memory::probe(),
        ["files"] => files::probe(),
        ["areas"] => limits::areas(),
        ["limits"] => limits::all(),
        ["layout"] => layout::probe(),
        ["place", name] => layout::tell(name),
        ["deep", depth] => layout::reach(number(depth)?),
        ["processes"] => processes::probe(),
        ["execute"] => processes::execute(false),
        ["leave"] => processes::execute(true),
        ["executed", pid] => processes::executed(pid.parse().map_err(|_| ProbeError::Unknown)?),
        ["closes"] => closes::probe(),
        ["closed"] => closes::closed(),
        ["urgency"] => urgency::probe(),
        ["sequence"] => sequence::probe(),
        ["registers"] => registers::probe(),
        ["crowd"] => crowd::probe(),
        ["signals"] => signals::probe(),
        ["restarts"] => restarts::probe(),
        ["killed"] => killed::probe(),
        ["jobs"] => jobs::probe(),
        ["stopped"] => jobs::stopped_while_computing(Signal::SIGSTOP),
        ["questions"] => questions::probe(),
        ["balance"] => balance::probe(),
        ["clocks"] => clocks::probe(),
        ["nested"] => nested::probe(),
        ["dump", ref ranges @ ..] => dump::probe(ranges),
        ["race", file, rounds] => race::probe(file, number(rounds)?),
        ["pins", rounds] => pins::probe(number(rounds)?),
        ["pointers"] => pointers::probe(),
        ["proxy"] => proxy::probe(),
        ["fuzz", seed, rounds] => fuzz::probe(number(seed)?, number(rounds)?),
        _ => Err(ProbeError::Unknown),
    }
}

/// A system call.
///
/// # Safety
/// That of the call. What it may do to this process the caller has thought of.
unsafe fn call(number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number.cast_signed(), a, b, c, d, e, f) };
    Errno::result(result).map(i64::cast_unsigned)
}

trait Named<T> {
    /// Says what was tried.
    fn named(self, what: &'static str) -> Result<T, ProbeError>;
}

impl<T> Named<T> for Result<T, Errno> {
    fn named(self, what: &'static str) -> Result<T, ProbeError> {
        self.map_err(|errno| ProbeError::Call { what, errno })
    }
}

/// Does something in a process of its own; how that ended.
fn in_a_child(deed: impl FnOnce()) -> Result<WaitStatus, ProbeError> {
    // SAFETY: this program has one thread when it comes here.
    match unsafe { fork() }.named("fork")? {
        ForkResult::Child => {
            deed();
            // SAFETY: it ends the process, without what the parent is to do at its end.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => waitpid(child, None).named("waiting for a child"),
    }
}
