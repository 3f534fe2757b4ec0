//! Waiting while a kernel runs.

use std::thread::{park_timeout, sleep};
use std::time::{Duration, Instant};

use insula_node::Handle;
use insula_watch::{NoKernel, OwnFiles, Watched};

use crate::Failure;

/// Time between two looks at whether a node still runs: less than a supervisor lets one rest before it
/// starts it again.
const STEP: Duration = Duration::from_millis(20);
/// Time between two looks at a node that is paused, or not yet ready to be watched.
const WAIT: Duration = Duration::from_millis(100);

/// What is known of a kernel after a wait.
#[derive(Clone, Copy)]
pub(super) enum State {
    /// It has run for so long.
    Runs(Duration),
    /// It has stopped, and its memory is as it left it.
    Stopped,
    /// Its memory is not its own any more.
    Gone,
}

/// Time that a kernel has run.
pub(super) struct Clock {
    start: Instant,
    paused: Duration,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            paused: Duration::ZERO,
        }
    }

    /// Waits, and returns the time then.
    pub(super) fn wait(&self, time: Duration) -> Duration {
        rest(time);
        self.start.elapsed().saturating_sub(self.paused)
    }

    /// Waits while a node's kernel runs, which is its `starts`-th; and for as long as it is paused.
    /// One that has stopped may be started again soon: so it is noticed at once.
    pub(super) fn wait_for_node(
        &mut self,
        time: Duration,
        handle: &mut Handle,
        starts: u64,
    ) -> State {
        let mut left = time;
        loop {
            let step = left.min(STEP);
            let now = self.wait(step);
            left -= step;
            if handle.refresh().is_err() || handle.info.starts != starts {
                return State::Gone;
            }
            if handle.is_stopped() {
                return State::Stopped;
            }
            match handle.is_running() {
                true if handle.is_paused() => self.pause(WAIT),
                true if left.is_zero() => return State::Runs(now),
                true => {}
                false => return State::Gone,
            }
        }
    }

    /// Waits, and does not count that.
    fn pause(&mut self, time: Duration) {
        let before = Instant::now();
        sleep(time);
        self.paused += before.elapsed();
    }
}

/// Waits as [`sleep`] does, but by a futex, which the lightweight kernel does not delegate: so it ends
/// also while the base hangs.
fn rest(time: Duration) {
    let begin = Instant::now();
    while let Some(left) = time
        .checked_sub(begin.elapsed())
        .filter(|left| !left.is_zero())
    {
        park_timeout(left);
    }
}

/// Waits until a node that has stopped was started again, and its kernel is there; `None` if it has
/// stopped for good.
pub(super) fn next(handle: &mut Handle, files: OwnFiles<'_>) -> Result<Option<Watched>, Failure> {
    while handle.refresh().is_ok() {
        if handle.is_stopped() && !handle.may_restart() {
            break;
        }
        if handle.is_running() {
            // Until it has logged something, there is none.
            match Watched::node(handle, files) {
                Ok(watched) => return Ok(Some(watched)),
                Err(error) if error.cause::<NoKernel>().is_none() => return Err(error.into()),
                Err(_) => {}
            }
        }
        sleep(WAIT);
    }
    Ok(None)
}
