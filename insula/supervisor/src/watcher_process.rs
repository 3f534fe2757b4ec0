//! The process that watches a node for its supervisor: `insula watch --here`.
//!
//! It reads what the node's kernel has written, which may be hostile, and much of it. So it is a
//! process of its own, with fewer privileges: whatever becomes of it, the node runs on, and is
//! supervised. It prints what it finds, in lines of JSON.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use insula_driver::Node;
use insula_node::policy::retry_delay;
use insula_privilege::{Sandbox, die_with_parent};
use insula_watch::Event;
use serde::Deserialize;

use super::journal::Journal;

/// This program, even if its file has been replaced.
const PROGRAM: &str = "/proc/self/exe";
/// Run time after which a process counts as started successfully.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// A line of the process.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Line {
    /// A finding begins or ends.
    Event {
        /// What.
        #[serde(flatten)]
        event: Event,
        /// Number of the start that it is about.
        starts: u64,
    },
    /// It has begun to watch, or has ended: `over`.
    Progress {
        /// Which.
        event: String,
        /// Number of the start that it is about.
        starts: u64,
    },
}

impl Line {
    fn is_begin(&self) -> bool {
        matches!(self, Self::Progress { event, .. } if event == "watching")
    }
}

/// Whether a node is watched.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Not yet.
    #[default]
    Begins,
    /// It is.
    Watches,
    /// It is not: what the process has done instead.
    Failed(String),
}

/// The process, started again whenever it has ended, and what it has told.
#[derive(Default)]
pub(super) struct WatcherProcess {
    running: Option<Running>,
    state: State,
    /// Processes that ended soon, one after the other.
    failures: u32,
    /// When the next one may be started.
    not_before: Option<Instant>,
}

struct Running {
    child: Child,
    lines: Receiver<Line>,
    since: Instant,
}

impl WatcherProcess {
    /// Starts it for that node, if it does not run and is not to rest. `open` opens a descriptor of
    /// the node for it.
    pub(super) fn ensure(
        &mut self,
        name: &str,
        open: impl FnOnce() -> Result<Node, String>,
        journal: &Journal,
    ) {
        self.reap(journal);
        let rests = self.not_before.is_some_and(|time| Instant::now() < time);
        if self.running.is_some() || rests {
            return;
        }
        let started = open().and_then(|node| {
            let started = Running::start(name, node, journal);
            started.map_err(|error| error.to_string())
        });
        match started {
            Ok(running) => self.running = Some(running),
            Err(error) => self.fail(&format!("cannot be started: {error}"), journal),
        }
    }

    /// What it has told since the last call.
    pub(super) fn lines(&mut self) -> Vec<Line> {
        let running = self.running.iter();
        let lines: Vec<_> = running.flat_map(|one| one.lines.try_iter()).collect();
        if lines.iter().any(Line::is_begin) {
            self.state = State::Watches;
        }
        lines
    }

    /// Whether the node is watched, as of the last call of `lines`.
    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// What it still tells of a start that is over, until it has told that, or for as long as that.
    pub(super) fn last_lines(&self, start: u64, timeout: Duration) -> Vec<Line> {
        let mut told = Vec::new();
        let Some(running) = &self.running else {
            return told;
        };
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match running.lines.recv_timeout(left) {
                Ok(Line::Progress { event, starts }) if event == "over" && starts == start => {
                    return told;
                }
                Ok(line) => told.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return told,
            }
        }
    }

    /// Notices that it has ended.
    fn reap(&mut self, journal: &Journal) {
        let Some(running) = &mut self.running else {
            return;
        };
        let ended = match running.child.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => format!("has ended: {status}"),
            Err(error) => format!("cannot be waited for: {error}"),
        };
        if running.since.elapsed() > STABLE_AFTER {
            self.failures = 0;
        }
        self.running = None;
        self.fail(&ended, journal);
    }

    fn fail(&mut self, what: &str, journal: &Journal) {
        self.state = State::Failed(what.to_owned());
        self.failures = self.failures.saturating_add(1);
        let delay = retry_delay(self.failures);
        self.not_before = Some(Instant::now() + delay);
        let wait = humantime::format_duration(delay);
        journal.error(&format!(
            "its watcher {what}; it is started again in {wait}"
        ));
    }
}

impl Running {
    fn start(name: &str, node: Node, journal: &Journal) -> Result<Self, insula_base::error::Error> {
        let failed = |error: std::io::Error| {
            insula_base::error::Error::new("its process cannot be made").because(error)
        };
        let mut command = Command::new(PROGRAM);
        command
            .arg0("insula")
            .args(["watch", name, "--here"])
            .current_dir("/")
            .stdin(OwnedFd::from(node))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        die_with_parent(&mut command);
        Sandbox::watcher()?.apply_to(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            let output = BufReader::new(output);
            thread::spawn(move || send_lines(output, &sender));
        }
        if let Some(output) = child.stderr.take() {
            let journal = journal.clone();
            let output = BufReader::new(output);
            thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    journal.notice(&format!("watcher: {line}"));
                }
            });
        }
        Ok(Self {
            child,
            lines,
            since: Instant::now(),
        })
    }
}

/// Sends the lines of the process until it ends, or nobody reads them.
fn send_lines(output: impl BufRead, to: &Sender<Line>) {
    for line in output.lines().map_while(Result::ok) {
        // What is no such line was not written by a watcher of this version.
        if let Ok(line) = serde_json::from_str(&line)
            && to.send(line).is_err()
        {
            return;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events_and_progress() {
        let text = concat!(
            r#"{"event":"watching","time":"t","starts":2}"#,
            "\nno line\n",
            r#"{"event":"found","kind":"oops","subject":"kernel","detail":"why","time":"t","starts":2}"#,
            "\n",
            r#"{"event":"over","time":"t","starts":2}"#,
            "\n",
        );
        let (sender, lines) = channel();
        send_lines(text.as_bytes(), &sender);
        drop(sender);
        let lines: Vec<_> = lines.iter().collect();
        let [
            Line::Progress { event: first, .. },
            Line::Event { event, starts: 2 },
            Line::Progress { event: last, .. },
        ] = lines.as_slice()
        else {
            panic!("{lines:?}");
        };
        assert_eq!((first.as_str(), last.as_str()), ("watching", "over"));
        assert_eq!(lines.iter().filter(|line| line.is_begin()).count(), 1);
        assert!(matches!(event, Event::Found(finding) if finding.subject == "kernel"));
    }

    #[test]
    fn a_process_that_fails_rests() {
        let journal = Journal::open("web".to_owned());
        let mut process = WatcherProcess::default();
        process.ensure("web", || Err("no".to_owned()), &journal);
        assert_eq!(process.failures, 1);
        assert_eq!(
            *process.state(),
            State::Failed("cannot be started: no".to_owned())
        );
        let mut was_opened = false;
        let mut open = || {
            was_opened = true;
            Err("no".to_owned())
        };
        process.ensure("web", &mut open, &journal);
        assert!(!was_opened);
        assert!(process.lines().is_empty());
    }
}
