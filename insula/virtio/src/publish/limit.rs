//! Limit on the clients of published ports, and reports of those that are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Minimum time between reports of refused clients.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Limits on the connections of all ports that share them.
#[derive(Debug)]
pub(in super::super) struct Limit {
    max: usize,
    /// Time that the other side gets to accept one.
    pub(super) connect_timeout: Duration,
    open: AtomicUsize,
}

impl Limit {
    /// At most `max` connections at a time, each of which is accepted within this time.
    pub(in super::super) fn new(max: usize, connect_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            max,
            connect_timeout,
            open: AtomicUsize::new(0),
        })
    }

    pub(super) fn admit(self: &Arc<Self>) -> Option<Admission> {
        let admitted = self.open.fetch_add(1, Ordering::Relaxed) < self.max;
        // Dropping it counts back, also if it is not admitted.
        let admission = Admission(Arc::clone(self));
        admitted.then_some(admission)
    }

    /// The most flows of datagrams that one port may have: a sender can claim any address, and shall not keep
    /// others from connecting.
    pub(super) fn flows_max(&self) -> usize {
        (self.max / 4).max(1)
    }

    /// Why no more are admitted.
    pub(super) fn reached(&self) -> String {
        format!("there are {} connections already", self.max)
    }
}

/// A connection, or a flow of datagrams, counted against the limit.
pub(super) struct Admission(Arc<Limit>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reports of refused clients, of which there may be many.
pub(super) struct Reports {
    report: Box<dyn Fn(&str) + Send>,
    last: Option<Instant>,
}

impl Reports {
    pub(super) fn new(report: Box<dyn Fn(&str) + Send>) -> Self {
        Self { report, last: None }
    }

    /// Tells why clients are refused, unless that was told just before.
    pub(super) fn tell(&mut self, why: &str) {
        let is_due = |last: Instant| last.elapsed() > REPORT_INTERVAL;
        if self.last.is_none_or(is_due) {
            (self.report)(&format!("clients are refused: {why}"));
            self.last = Some(Instant::now());
        }
    }
}
