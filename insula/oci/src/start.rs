//! `start`: it returns when the container's process runs in its node, as it does when an ordinary runtime has started one. So
//! signals come to that process, and others can join it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use insula_base::error::Error;
use insula_driver::Driver;
use insula_exec::agent::Location;
use insula_exec::container::processes_at;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::arguments::Arguments;
use super::exit_code;
use super::runtime::Runtime;
use super::state::Record;

/// Time that it waits: a node may wait for another one's cores and memory. What goes on longer is no failure.
const TIMEOUT: Duration = Duration::from_secs(60);
const INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// Starts a container.
///
/// # Errors
/// The ordinary runtime cannot be executed.
pub(super) fn start(
    arguments: &Arguments,
    runtime: &Runtime,
    record: &Record,
) -> Result<ExitCode, Error> {
    let status = runtime.run(&arguments.words())?;
    if status.success() {
        wait_until_it_runs(record);
    }
    Ok(exit_code(status))
}

/// Waits until the container's process runs, or what stands for it has ended: that tells why in the container's log.
pub(super) fn wait_until_it_runs(record: &Record) {
    let id = record.pid().and_then(|id| i32::try_from(id).ok());
    let stand_in = id.and_then(Pid::from_raw);
    let stand_in = stand_in.and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
    let (Some(stand_in), Ok(driver)) = (stand_in, Driver::open()) else {
        return;
    };
    let (began, at) = (Instant::now(), Location::Node(record.node.clone()));
    let has_ended = || {
        let mut end = [PollFd::new(&stand_in, PollFlags::IN)];
        poll(&mut end, Some(&INTERVAL)) != Ok(0)
    };
    while processes_at(&driver, &at, &record.name).is_err()
        && !has_ended()
        && began.elapsed() < TIMEOUT
    {}
}
