//! The supervisor's log: lines to syslog, and events for `insula events`.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use insula_base::error_text::plain;
use insula_base::root::Root;
use insula_node::events::{NodeEvent, Status};
use insula_watch::Finding;
use nix::syslog::{Facility, LogFlags, Priority, Severity, openlog, syslog};

/// The log of one node's supervisor.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    /// The node's name, which it may exchange with another one.
    node: Arc<Mutex<String>>,
}

impl Journal {
    pub(super) fn open(node: String) -> Self {
        // Only fails for an identifier with a NUL.
        let _ = openlog(Some(c"insula"), LogFlags::LOG_PID, Facility::LOG_DAEMON);
        Self {
            node: Arc::new(Mutex::new(node)),
        }
    }

    /// Goes on under the node's name of now.
    pub(super) fn rename(&self, node: &str) {
        let mut name = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        if *name != node {
            node.clone_into(&mut name);
        }
    }

    fn name(&self) -> String {
        let name = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        name.clone()
    }

    /// Logs a normal event.
    pub(super) fn notice(&self, text: &str) {
        self.write(Severity::LOG_NOTICE, text);
    }

    /// Logs an error.
    pub(super) fn error(&self, text: &str) {
        self.write(Severity::LOG_ERR, text);
    }

    /// Logs an event of the node's life, and records it.
    pub(super) fn event(&self, status: Status, text: &str) {
        self.notice(text);
        self.record(self.new_event(status));
    }

    /// Logs that the node has ended, and records why.
    pub(super) fn died(&self, reason: &str, text: &str) {
        self.notice(text);
        self.record(self.new_event(Status::Died).with("reason", reason));
    }

    /// Logs that a dump was written, and records where.
    pub(super) fn dumped(&self, path: &Path) {
        self.notice(&format!("memory dump kept in {}", path.display()));
        let event = self.new_event(Status::Dump);
        self.record(event.with("path", path.display().to_string()));
    }

    /// Logs what has become of a finding, and records it.
    pub(super) fn finding(&self, status: Status, finding: &Finding) {
        self.write(
            Severity::LOG_WARNING,
            &format!("{}: {finding}", status.name()),
        );
        self.record(finding.event(&self.name(), status));
    }

    /// Logs panics of this process, whose standard error is closed.
    pub(super) fn log_panics(&self) {
        let journal = self.clone();
        std::panic::set_hook(Box::new(move |panic| journal.error(&panic.to_string())));
    }

    fn new_event(&self, status: Status) -> NodeEvent {
        NodeEvent::now(&self.name(), status)
    }

    fn record(&self, event: NodeEvent) {
        if let Err(error) = event.record(&Root::default()) {
            self.error(&format!("the event cannot be recorded: {error}"));
        }
    }

    fn write(&self, severity: Severity, text: &str) {
        let priority = Priority::new(severity, Facility::LOG_DAEMON);
        let line = format!("{}: {}", self.name(), plain(text).replace('\n', "; "));
        // Without syslog there is nowhere to report.
        let _ = syslog(priority, line.as_str());
    }
}
