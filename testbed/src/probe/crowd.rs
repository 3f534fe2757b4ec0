//! Processes on all cores that end at the same moment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, setpgid};

use super::{Named, ProbeError, shared};

const ROUNDS: usize = 30;
/// Processes to each core.
const EACH: usize = 2;

pub(super) fn probe() -> Result<(), ProbeError> {
    let count = EACH * thread::available_parallelism().map_or(1, usize::from);
    let up = &shared::words(1)?[0];
    for _ in 0..ROUNDS {
        up.store(0, Ordering::Relaxed);
        let crowd = begin(count, up)?;
        while up.load(Ordering::Relaxed) < count as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        killpg(crowd[0], Signal::SIGKILL).named("kill")?;
        for child in crowd {
            waitpid(child, None).named("waiting for a child")?;
        }
    }
    println!("{ROUNDS} times {count} processes have ended at once");
    Ok(())
}

/// Processes that compute until they are ended, all in one group.
fn begin(count: usize, up: &AtomicU64) -> Result<Vec<Pid>, ProbeError> {
    let mut crowd = Vec::new();
    while crowd.len() < count {
        // SAFETY: this program has one thread.
        match unsafe { fork() }.named("fork")? {
            ForkResult::Child => {
                up.fetch_add(1, Ordering::Relaxed);
                loop {
                    std::hint::spin_loop();
                }
            }
            ForkResult::Parent { child } => {
                crowd.push(child);
                setpgid(child, crowd[0]).named("setpgid")?;
            }
        }
    }
    Ok(crowd)
}
