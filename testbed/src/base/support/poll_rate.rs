//! Rate at which the base's exit poll checks its nodes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::insula_command::wait_for;
use crate::base::Finding;

const TRACING: &str = "/sys/kernel/tracing";
/// Trace event of each expiry of a timer, with the name of its function.
const EXPIRY: &str = "events/timer/hrtimer_expire_entry/enable";
const POLL: &str = "function=exit_poll_tick [insula]";
/// Period of the poll for nodes whose kernels wait after they have announced their end.
const IDLE_PERIOD: Duration = Duration::from_millis(10);
/// Time of counting.
const SECOND: Duration = Duration::from_secs(1);

/// If all running nodes wait after they have announced their end, the base polls no more often than
/// needed for these. It may be late, never early.
pub(crate) fn assert_idle_rate() -> Result<(), Finding> {
    mount()?;
    // Polls before counting starts are counted as well, so that the first period is not too short
    // either.
    wait_for("the base to have polled its nodes", || {
        let (polls, elapsed) = count()?;
        let most = elapsed.as_millis() / IDLE_PERIOD.as_millis() + 2;
        Finding::unless(polls <= most, || {
            format!("{polls} polls in {elapsed:?}, more than {most}")
        })?;
        Ok((polls > 0).then_some(()))
    })
}

/// Number of polls in a while, and how long that was.
fn count() -> Result<(u128, Duration), Finding> {
    let path = |name: &str| Path::new(TRACING).join(name);
    fs::write(path("trace"), "")?;
    let began = Instant::now();
    fs::write(path(EXPIRY), "1")?;
    thread::sleep(SECOND);
    fs::write(path(EXPIRY), "0")?;
    let elapsed = began.elapsed();
    let polls = fs::read_to_string(path("trace"))?;
    let polls = polls.lines().filter(|line| line.contains(POLL)).count();
    Ok((polls as u128, elapsed))
}

fn mount() -> Result<(), Finding> {
    if Path::new(TRACING).join(EXPIRY).exists() {
        return Ok(());
    }
    let status = Command::new("mount")
        .args(["-t", "tracefs", "tracefs", TRACING])
        .status()?;
    Finding::unless(status.success(), || "tracefs could not be mounted".into())
}
