//! How often the base looks whether its nodes have ended.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::Finding;
use super::insula_command::wait_for;

const TRACING: &str = "/sys/kernel/tracing";
/// Each expiry of a timer is told, with the name of what it calls.
const EXPIRY: &str = "events/timer/hrtimer_expire_entry/enable";
const LOOK: &str = "function=tick [insula]";
/// Of nodes whose kernels wait when they have said that they end.
const CALM_PERIOD: Duration = Duration::from_millis(10);
/// For how long it is counted.
const SECOND: Duration = Duration::from_secs(1);

/// All nodes that run wait when they have said that they end: the base looks no more often than it has to
/// for these. It may be late, never early.
pub(super) fn assert_calm() -> Result<(), Finding> {
    mount()?;
    // Those that were told in between count as well, so not even the first period is too short.
    wait_for("the base to have looked at its nodes", || {
        let (looks, elapsed) = count()?;
        let most = elapsed.as_millis() / CALM_PERIOD.as_millis() + 2;
        Finding::unless(looks <= most, || {
            format!("it looked {looks} times in {elapsed:?}, not {most}")
        })?;
        Ok((looks > 0).then_some(()))
    })
}

/// How often it looks in a while, and how long that was.
fn count() -> Result<(u128, Duration), Finding> {
    let path = |name: &str| Path::new(TRACING).join(name);
    fs::write(path("trace"), "")?;
    let began = Instant::now();
    fs::write(path(EXPIRY), "1")?;
    thread::sleep(SECOND);
    fs::write(path(EXPIRY), "0")?;
    let elapsed = began.elapsed();
    let looks = fs::read_to_string(path("trace"))?;
    let looks = looks.lines().filter(|line| line.contains(LOOK)).count();
    Ok((looks as u128, elapsed))
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
