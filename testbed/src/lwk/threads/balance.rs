//! Load balancing: ready threads move to idle cores.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;

use crate::lwk::ProbeError;

/// Time limit of waiting for threads.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Core of a thread that has not run yet.
const NOWHERE: i32 = -1;

/// Thread that only records its core.
struct Runner {
    core: AtomicI32,
    is_over: AtomicBool,
}

impl Runner {
    fn run(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            // SAFETY: it takes no address.
            let core = unsafe { libc::sched_getcpu() };
            self.core.store(core, Ordering::Relaxed);
        }
    }

    fn core(&self) -> i32 {
        self.core.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Two threads to each core; then all but two on the same core end, and these must get a core each.
pub(crate) fn probe() -> Result<(), ProbeError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let new = || Runner {
        core: AtomicI32::new(NOWHERE),
        is_over: AtomicBool::new(false),
    };
    let runners: Vec<Runner> = std::iter::repeat_with(new).take(2 * cores).collect();
    let spread = thread::scope(|scope| {
        for runner in &runners {
            scope.spawn(|| runner.run());
        }
        let spread = leave_two(&runners);
        runners.iter().for_each(Runner::end);
        spread
    });
    match spread {
        true => println!("two threads of one core have come to two of {cores}"),
        false => return Err(ProbeError::Wrong("two threads stay on one core".into())),
    }
    Ok(())
}

fn leave_two(runners: &[Runner]) -> bool {
    wait_until(|| runners.iter().all(|runner| runner.core() != NOWHERE));
    let Some((one, two)) = pair(runners) else {
        return false;
    };
    for (index, runner) in runners.iter().enumerate() {
        if index != one && index != two {
            runner.end();
        }
    }
    wait_until(|| runners[one].core() != runners[two].core())
}

/// Two threads on the same core: there are more threads than cores.
fn pair(runners: &[Runner]) -> Option<(usize, usize)> {
    let cores: Vec<i32> = runners.iter().map(Runner::core).collect();
    (1..cores.len()).find_map(|two| {
        let one = cores[..two].iter().position(|&core| core == cores[two])?;
        Some((one, two))
    })
}

fn wait_until(is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() && began.elapsed() < TIMEOUT {
        thread::sleep(Duration::from_millis(1));
    }
    is_so()
}
