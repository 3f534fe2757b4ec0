//! Process groups that are killed at once, with processes on all cores.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, setpgid};

use crate::lwk::{Named, ProbeError, shared};

const ROUNDS: usize = 30;
/// Processes to each core.
const EACH: usize = 2;

pub(crate) fn probe() -> Result<(), ProbeError> {
    let count = EACH * thread::available_parallelism().map_or(1, usize::from);
    let words = shared::words(2)?;
    let (up, writes) = (&words[0], &words[1]);
    for _ in 0..ROUNDS {
        up.store(0, Ordering::Relaxed);
        let group = fork_group(count, up, writes)?;
        while up.load(Ordering::Relaxed) < count as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        killpg(group[0], Signal::SIGKILL).named("kill")?;
        for child in group {
            waitpid(child, None).named("waiting for a child")?;
        }
        nothing_writes(writes)?;
    }
    println!("{ROUNDS} times {count} processes have ended at once");
    Ok(())
}

/// Processes that have been waited for write shared memory no more.
fn nothing_writes(writes: &AtomicU64) -> Result<(), ProbeError> {
    let before = writes.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(2));
    match writes.load(Ordering::Relaxed) - before {
        0 => Ok(()),
        more => Err(ProbeError::Wrong(format!("{more} writes after their end"))),
    }
}

/// Forks processes that compute until they are killed, all in one group.
fn fork_group(count: usize, up: &AtomicU64, writes: &AtomicU64) -> Result<Vec<Pid>, ProbeError> {
    let mut group = Vec::new();
    while group.len() < count {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.named("fork")? {
            ForkResult::Child => {
                up.fetch_add(1, Ordering::Relaxed);
                loop {
                    writes.fetch_add(1, Ordering::Relaxed);
                    std::hint::spin_loop();
                }
            }
            ForkResult::Parent { child } => {
                group.push(child);
                setpgid(child, group[0]).named("setpgid")?;
            }
        }
    }
    Ok(group)
}
