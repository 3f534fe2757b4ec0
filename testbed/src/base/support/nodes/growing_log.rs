//! A node's log while it grows.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::base::Finding;
use crate::base::support::insula_command::{TIMEOUT, command, tell};

/// Pause before a log that has ended is looked at again: its node may be started again.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until a line of the node's log gives a value, for at most [`TIMEOUT`]. One process reads it all the
/// time: to start one again and again would take most of the time of an emulated core.
pub(crate) fn wait_for_record<T>(
    node: &str,
    what: &str,
    mut check: impl FnMut(&str) -> Result<Option<T>, Finding>,
) -> Result<T, Finding> {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        let mut follower = Follower::start(node)?;
        while let Some(line) = follower.line_until(began + TIMEOUT)? {
            if let Some(found) = check(&line)? {
                tell(began, &format!("waited for {what}"));
                return Ok(found);
            }
        }
        thread::sleep(PAUSE);
    }
    let waited_s = began.elapsed().as_secs();
    Err(Finding::new(format!("waited {waited_s} s for {what}")))
}

/// `insula logs --follow`, which is killed at the end.
struct Follower {
    process: Child,
    lines: Receiver<String>,
}

impl Follower {
    fn start(node: &str) -> Result<Self, Finding> {
        let mut process = command(&["logs", "--follow", node])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (sender, lines) = channel();
        if let Some(output) = process.stdout.take() {
            // It ends with the process, or when nobody listens any more.
            thread::spawn(move || {
                let lines = BufReader::new(output).lines().map_while(Result::ok);
                lines
                    .map(|line| sender.send(line))
                    .take_while(Result::is_ok)
                    .for_each(drop);
            });
        }
        Ok(Self { process, lines })
    }

    /// The next line; none at the end of the log, or at that time.
    fn line_until(&mut self, time: Instant) -> Result<Option<String>, Finding> {
        let left = time.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => self.ended().map(|()| None),
        }
    }

    /// The process has ended, as it does when its node has.
    fn ended(&mut self) -> Result<(), Finding> {
        let status = self.process.wait()?;
        let mut errors = String::new();
        if let Some(mut output) = self.process.stderr.take() {
            output.read_to_string(&mut errors)?;
        }
        Finding::unless(status.success(), || {
            format!("a log is not followed: {errors}")
        })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
