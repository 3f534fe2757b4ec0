//! Random calls with random arguments, by an unprivileged user. Their results do not matter: the
//! kernel must survive.

use std::time::{Duration, Instant};

use insula_lwk::syscall::table::TABLE;
use nix::libc;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Gid, Pid, Uid, setgroups, setresgid, setresuid};

use super::{Named, ProbeError, call, shared};

/// `nobody`.
const USER: u32 = 65_534;
const FOLDER: &str = "/tmp/fuzz";
/// Calls of one process, and its time limit.
const CALLS: u32 = 300;
const LIMIT: Duration = Duration::from_secs(2);
/// Calls that would end the process at once, or block until a signal.
const LEFT_OUT: &[&str] = &["exit", "exit_group", "pause", "rt_sigreturn", "vhangup"];

pub(super) fn probe(seed: u64, rounds: u64) -> Result<(), ProbeError> {
    let _ = std::fs::create_dir(FOLDER);
    let _ = std::os::unix::fs::chown(FOLDER, Some(USER), Some(USER));
    let made = &shared::words(1)?[0];
    for round in 0..rounds {
        match fork_apart()? {
            ForkResult::Child => {
                if become_nobody().is_ok() {
                    make_calls(seed.wrapping_add(round), made);
                }
                // SAFETY: it ends the process.
                unsafe { libc::_exit(0) }
            }
            ForkResult::Parent { child } => wait_for(child)?,
        }
    }
    let _ = std::fs::remove_dir_all(FOLDER);
    println!("{} calls", made.load(std::sync::atomic::Ordering::Relaxed));
    Ok(())
}

/// Forks a child in a PID namespace of its own, so that all processes that it starts end with it:
/// they may block for ever.
fn fork_apart() -> Result<ForkResult, ProbeError> {
    let flags = (libc::CLONE_NEWPID | libc::SIGCHLD) as u64;
    // SAFETY: as fork, in a program of one thread.
    let child = unsafe { call(libc::SYS_clone as u64, [flags, 0, 0, 0, 0, 0]) };
    Ok(match child.named("clone")? {
        0 => ForkResult::Child,
        child => ForkResult::Parent {
            child: Pid::from_raw(child as i32),
        },
    })
}

fn become_nobody() -> Result<(), nix::errno::Errno> {
    nix::unistd::chdir(FOLDER)?;
    for (resource, most) in [
        (Resource::RLIMIT_NPROC, 40),
        (Resource::RLIMIT_FSIZE, 1 << 20),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, 64),
    ] {
        setrlimit(resource, most, most)?;
    }
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)
}

fn make_calls(seed: u64, made: &std::sync::atomic::AtomicU64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut memory = vec![0_u8; 1 << 16];
    let start = memory.as_mut_ptr().expose_provenance() as u64;
    for _ in 0..CALLS {
        let one = &TABLE[rng.usize(..TABLE.len())];
        if LEFT_OUT.contains(&one.name) {
            continue;
        }
        rng.fill(&mut memory[..256]);
        let arguments = std::array::from_fn(|_| argument(&mut rng, start));
        made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // SAFETY: this process is for nothing else; it may lose its memory and end.
        let _ = unsafe { call(one.number, arguments) };
    }
}

fn argument(rng: &mut fastrand::Rng, memory: u64) -> u64 {
    match rng.u8(..10) {
        0 => 0,
        1 => rng.u64(..8),
        2 => 1 << rng.u32(..64),
        3 => rng.u64(..),
        4 => rng
            .u64(..)
            .cast_signed()
            .wrapping_shr(rng.u32(..64))
            .cast_unsigned(),
        5 => u64::MAX - rng.u64(..4096),
        6 => 4096 * rng.u64(..16),
        // Mapped memory, and its end.
        7 => memory + (1 << 16) - rng.u64(..64),
        _ => memory + rng.u64(..256),
    }
}

/// Waits until a child has ended, or kills it after its time limit.
fn wait_for(child: nix::unistd::Pid) -> Result<(), ProbeError> {
    let began = Instant::now();
    loop {
        let status = waitpid(child, Some(WaitPidFlag::WNOHANG));
        if status.named("waiting for a child")? != WaitStatus::StillAlive {
            return Ok(());
        }
        if began.elapsed() > LIMIT {
            let _ = kill(child, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
