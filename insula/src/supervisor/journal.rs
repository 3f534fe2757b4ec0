//! What a supervisor tells: lines to the system's log, as daemons do.

use nix::syslog::{Facility, LogFlags, Priority, Severity, openlog, syslog};

use crate::report::plain;

/// The log of one node's supervisor.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    node: String,
}

impl Journal {
    pub(super) fn open(node: String) -> Self {
        // It cannot fail for an identifier without a NUL; then lines come without one.
        let _ = openlog(Some(c"insula"), LogFlags::LOG_PID, Facility::LOG_DAEMON);
        Self { node }
    }

    /// Tells what is in order.
    pub(super) fn note(&self, text: &str) {
        self.write(Severity::LOG_NOTICE, text);
    }

    /// Tells what is not.
    pub(super) fn complain(&self, text: &str) {
        self.write(Severity::LOG_ERR, text);
    }

    /// Tells of panics of this process as well, whose standard error nobody reads.
    pub(super) fn tell_of_panics(&self) {
        let journal = self.clone();
        std::panic::set_hook(Box::new(move |panic| journal.complain(&panic.to_string())));
    }

    fn write(&self, severity: Severity, text: &str) {
        let priority = Priority::new(severity, Facility::LOG_DAEMON);
        let line = format!("{}: {}", self.node, plain(text).replace('\n', "; "));
        // With no system log there is nobody to tell.
        let _ = syslog(priority, line.as_str());
    }
}
