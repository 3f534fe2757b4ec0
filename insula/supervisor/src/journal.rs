//! The supervisor's log: lines to syslog.

use insula_base::error_text::plain;
use nix::syslog::{Facility, LogFlags, Priority, Severity, openlog, syslog};

/// The log of one node's supervisor.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    node: String,
}

impl Journal {
    pub(super) fn open(node: String) -> Self {
        // Only fails for an identifier with a NUL.
        let _ = openlog(Some(c"insula"), LogFlags::LOG_PID, Facility::LOG_DAEMON);
        Self { node }
    }

    /// Logs a normal event.
    pub(super) fn notice(&self, text: &str) {
        self.write(Severity::LOG_NOTICE, text);
    }

    /// Logs an error.
    pub(super) fn error(&self, text: &str) {
        self.write(Severity::LOG_ERR, text);
    }

    /// Logs panics of this process, whose standard error is closed.
    pub(super) fn log_panics(&self) {
        let journal = self.clone();
        std::panic::set_hook(Box::new(move |panic| journal.error(&panic.to_string())));
    }

    fn write(&self, severity: Severity, text: &str) {
        let priority = Priority::new(severity, Facility::LOG_DAEMON);
        let line = format!("{}: {}", self.node, plain(text).replace('\n', "; "));
        // Without syslog there is nowhere to report.
        let _ = syslog(priority, line.as_str());
    }
}
