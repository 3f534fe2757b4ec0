//! An `insula watch` that runs beside the scenario.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use serde_json::Value;

use crate::base::Finding;
use crate::base::support::insula_command::{command, json_of, text, wait_for};

/// The process, which is killed when this is dropped, and what it has printed so far.
pub(super) struct WatcherProcess {
    child: Child,
    events: Arc<Mutex<Vec<Value>>>,
    /// Events that were waited for.
    seen: usize,
}

/// A finding that is to be told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    pub(super) kind: &'static str,
    /// Part of its subject and detail.
    pub(super) part: &'static str,
}

impl Expected {
    /// Whether an event is about it.
    pub(super) fn is_told_by(&self, event: &Value) -> bool {
        let said = format!("{}: {}", text(&event["subject"]), text(&event["detail"]));
        event["kind"] == self.kind && said.contains(self.part)
    }
}

impl WatcherProcess {
    /// Starts it with these arguments of `insula watch`, and waits until it has looked for the first
    /// time.
    pub(super) fn start(arguments: &[&str]) -> Result<Self, Finding> {
        Self::start_by(&[], arguments)
    }

    /// The same on a node of the lightweight kernel.
    pub(super) fn start_on(node: &str, arguments: &[&str]) -> Result<Self, Finding> {
        Self::start_by(&["exec", node, "--", "insula"], arguments)
    }

    fn start_by(prefix: &[&str], arguments: &[&str]) -> Result<Self, Finding> {
        let words = [prefix, &["watch", "--json"], arguments].concat();
        let mut child = command(&words).stdout(Stdio::piped()).spawn()?;
        let events = Arc::new(Mutex::new(Vec::new()));
        if let Some(output) = child.stdout.take() {
            let events = Arc::clone(&events);
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // What is not as it should be is shown with the events.
                    let event = json_of(&["watch"], &line)
                        .unwrap_or_else(|error| Value::String(error.to_string()));
                    let mut events = events.lock().unwrap_or_else(PoisonError::into_inner);
                    events.push(event);
                }
            });
        }
        let watcher = Self {
            child,
            events,
            seen: 0,
        };
        wait_for("the watcher to look", || {
            let is_begin = |event: &Value| event["event"] == "watching";
            Ok(watcher.all().iter().any(is_begin).then_some(()))
        })?;
        Ok(watcher)
    }

    /// Waits for an event of that kind of finding, of those since the last call.
    pub(super) fn wait_for(&mut self, event: &str, kind: &str) -> Result<Value, Finding> {
        let found = wait_for(&format!("{kind} to be {event}"), || {
            let events = self.all();
            let mut new = events.iter().enumerate().skip(self.seen);
            let found = new.find(|(_, one)| one["event"] == event && one["kind"] == kind);
            Ok(found.map(|(index, one)| (index, one.clone())))
        });
        let (index, event) =
            found.map_err(|finding| finding.when(&format!("after {:?}", self.all())))?;
        self.seen = index + 1;
        Ok(event)
    }

    /// Waits until each of these is among the events from that index on, in any order. Returns the
    /// event of each.
    pub(super) fn wait_for_each(
        &self,
        since: usize,
        event: &str,
        expected: &[Expected],
    ) -> Result<Vec<Value>, Finding> {
        let wait = |one: &Expected| {
            let what = format!("{} ({}) to be {event}", one.kind, one.part);
            let is_it = |value: &&Value| value["event"] == event && one.is_told_by(value);
            wait_for(&what, || {
                Ok(self.all()[since..].iter().find(is_it).cloned())
            })
            .map_err(|finding| finding.when(&format!("after {:?}", &self.all()[since..])))
        };
        expected.iter().map(wait).collect()
    }

    /// Does something while it does not look.
    pub(super) fn while_stopped(
        &self,
        part: impl FnOnce() -> Result<(), Finding>,
    ) -> Result<(), Finding> {
        let process = Pid::from_raw(self.child.id().cast_signed());
        signal::kill(process, Signal::SIGSTOP)?;
        let done = part();
        signal::kill(process, Signal::SIGCONT)?;
        done
    }

    /// Everything that it has printed.
    pub(super) fn all(&self) -> Vec<Value> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.clone()
    }
}

impl Drop for WatcherProcess {
    fn drop(&mut self) {
        // It would watch for ever; it may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
