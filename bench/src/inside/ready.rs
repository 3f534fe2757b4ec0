//! Waiting for a node's init.

use std::thread;
use std::time::{Duration, Instant};

use insula_driver::Driver;
use insula_driver::name::Name;
use insula_node::{self as node, NodeLog};
use testbed::base::Finding;

/// First line of the test nodes' init.
pub const READY: &str = "insula-node: ready";

/// Interval of polling a node's log: the error of each time.
const POLL_INTERVAL: Duration = Duration::from_millis(3);
/// On a quiet machine a boot takes two seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// Waits for the line of a node's init in its kernel's log, which is read from its memory, and
/// returns when it was there.
///
/// # Errors
/// When it does not come, or the log cannot be read.
pub fn wait_until_ready(driver: &Driver, name: &Name) -> Result<Instant, Finding> {
    wait_for_line(driver, name, READY, POLL_INTERVAL)
}

/// The same for any line that contains `words`, polled every `interval`.
///
/// # Errors
/// When it does not come, or the log cannot be read.
pub fn wait_for_line(
    driver: &Driver,
    name: &Name,
    words: &str,
    interval: Duration,
) -> Result<Instant, Finding> {
    let handle = node::find(driver, name)?;
    let log = NodeLog::open(&handle)?;
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        // Before the kernel has relocated itself, this may not be its log.
        if let Some(placement) = log.locate() {
            let mut reader = log.reader(placement);
            let mut seen = false;
            while let Ok(Some(record)) = log.next(&mut reader) {
                if record.text().contains(words) {
                    return Ok(Instant::now());
                }
                seen = true;
            }
            if seen {
                return follow(&log, reader, deadline, words, interval);
            }
        }
        thread::sleep(interval);
    }
    Err(Finding::new(format!(
        "the node {name} logged nothing in time"
    )))
}

fn follow(
    log: &NodeLog,
    mut reader: kimage::log::LogReader<'_, insula_driver::Mapping>,
    deadline: Instant,
    words: &str,
    interval: Duration,
) -> Result<Instant, Finding> {
    let mut last = String::new();
    while Instant::now() < deadline {
        while let Some(record) = log.next(&mut reader)? {
            last = record.text();
            if last.contains(words) {
                return Ok(Instant::now());
            }
        }
        thread::sleep(interval);
    }
    Err(Finding::new(format!(
        "a node did not log \"{words}\" in time; its last line: {last}"
    )))
}
