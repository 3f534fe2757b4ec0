//! Runs on the lightweight kernel, and on the base to compare: program `insula-probe`, a static Rust
//! program that makes system calls which no library makes, or with arguments that no library would
//! pass.

#![allow(unsafe_code, reason = "system calls are made by number")]

mod clocks;
mod fuzz;
mod io_uring;
mod limits;
pub(crate) mod memory;
mod messages;
mod nested;
mod pci;
mod pointers;
mod processes;
mod proxy;
mod shared;
mod threads;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use crate::base::scenario::vmcore;

/// Failure of a probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No probe has that name.
    #[error(
        "threads | memory | files | answers FILE | random SEED STEPS | areas | limits | layout | place NAME | deep BYTES | processes | execute | leave | executed PID | close_on_exec | closed | executable | priorities | rseq | registers | balance | mass_kill | signals | restarts | robust_locks | robust_holder FILE PROTOCOL | robust_waiter FILE | jobs | stopped | remote_faults | replaced | shared_files | private_files | merged | forked | late_replies | clocks | nested | locked | huge FOLDER | event_rings | dump START+SIZE... | io_uring | signal_files | others | absent | file_pages FOLDER ROUNDS | race FILE ROUNDS | pins ROUNDS | messages KILLS | pci ADDRESS KILLS | pointers | proxy | fuzz SEED ROUNDS"
    )]
    Unknown,
    /// A call failed unexpectedly.
    #[error("{what}: {errno}")]
    Call {
        /// Name of the call.
        what: &'static str,
        /// The error.
        errno: Errno,
    },
    /// The kernel behaved wrongly.
    #[error("{0}")]
    Wrong(String),
}

/// Runs the probe that the words name.
///
/// # Errors
/// [`ProbeError`].
pub fn run(words: &[String]) -> Result<(), ProbeError> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse().map_err(|_| ProbeError::Unknown);
    match words[..] {
        ["threads"] => threads::synchronisation::probe(),
        ["memory"] => memory::mappings::probe(),
        ["files"] => memory::files::probe(),
        ["answers", path] => memory::answers::probe(path),
        ["random", seed, steps] => memory::random::probe(number(seed)?, number(steps)?),
        ["areas"] => limits::areas(),
        ["limits"] => limits::all(),
        ["layout"] => memory::layout::probe(),
        ["place", name] => memory::layout::print_address(name),
        ["deep", depth] => memory::layout::grow_stack(number(depth)?),
        ["processes"] => processes::sharing::probe(),
        ["execute"] => processes::sharing::execute(false),
        ["leave"] => processes::sharing::execute(true),
        ["executed", pid] => {
            processes::sharing::executed(pid.parse().map_err(|_| ProbeError::Unknown)?)
        }
        ["close_on_exec"] => processes::close_on_exec::probe(),
        ["executable"] => processes::executable::probe(),
        ["closed"] => processes::close_on_exec::closed(),
        ["priorities"] => threads::priorities::probe(),
        ["rseq"] => threads::rseq::probe(),
        ["registers"] => threads::registers::probe(),
        ["mass_kill"] => processes::mass_kill::probe(),
        ["signals"] => processes::signals::probe(),
        ["restarts"] => processes::restarts::probe(),
        ["robust_locks"] => threads::robust_locks::probe(),
        ["robust_holder", file, protocol] => threads::robust_locks::hold(file, protocol),
        ["robust_waiter", file] => threads::robust_locks::wait(file),
        ["jobs"] => processes::jobs::probe(),
        ["stopped"] => processes::jobs::stopped_while_computing(Signal::SIGSTOP),
        ["remote_faults"] => memory::remote_faults::probe(),
        ["shared_files"] => memory::shared_files::probe(),
        ["private_files"] => memory::private_files::probe(),
        ["merged"] => memory::merged::probe(),
        ["replaced"] => memory::replaced::probe(),
        ["forked"] => memory::forked::probe(),
        ["late_replies"] => processes::late_replies::probe(),
        ["balance"] => threads::balance::probe(),
        ["clocks"] => clocks::probe(),
        ["nested"] => nested::probe(),
        ["locked"] => memory::locked::probe(),
        ["huge", folder] => memory::huge::probe(folder),
        ["event_rings"] => memory::event_rings::probe(),
        ["dump", ref ranges @ ..] => vmcore::probe(ranges),
        ["file_pages", folder, rounds] => memory::file_pages::probe(folder, number(rounds)?),
        ["race", file, rounds] => memory::race::probe(file, number(rounds)?),
        ["signal_files"] => processes::signal_files::probe(),
        ["io_uring"] => io_uring::probe(),
        ["others"] => memory::others::probe(),
        ["absent"] => memory::others::absent(),
        ["pins", rounds] => memory::pins::probe(number(rounds)?),
        ["messages", kills] => messages::probe(number(kills)?),
        ["pci", address, kills] => pci::probe(address, number(kills)?),
        ["pointers"] => pointers::probe(),
        ["proxy"] => proxy::probe(),
        ["fuzz", seed, rounds] => fuzz::probe(number(seed)?, number(rounds)?),
        _ => Err(ProbeError::Unknown),
    }
}

/// Makes a system call.
///
/// # Safety
/// The call must be safe: the caller is responsible for its effects on this process.
unsafe fn call(number: u64, arguments: [u64; 6]) -> Result<u64, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    let result = unsafe { libc::syscall(number.cast_signed(), a, b, c, d, e, f) };
    Errno::result(result).map(i64::cast_unsigned)
}

trait Named<T> {
    /// Adds the name of the call.
    fn named(self, what: &'static str) -> Result<T, ProbeError>;
}

impl<T> Named<T> for Result<T, Errno> {
    fn named(self, what: &'static str) -> Result<T, ProbeError> {
        self.map_err(|errno| ProbeError::Call { what, errno })
    }
}

/// Runs `action` in a child process and returns how that ended.
fn in_a_child(action: impl FnOnce()) -> Result<WaitStatus, ProbeError> {
    // SAFETY: this program has one thread here.
    match unsafe { fork() }.named("fork")? {
        ForkResult::Child => {
            action();
            // SAFETY: it ends the process, without the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => waitpid(child, None).named("waiting for a child"),
    }
}
