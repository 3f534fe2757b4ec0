//! Detects machines that hang while they boot, as against slow ones.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Line that the first process logs before it starts the task.
const READY: &str = "testbed: ready";
/// Longest pause in the log of a booting kernel. On a quiet host it is half a second; on a loaded
/// one all takes ten times as long.
const PAUSE_LIMIT: Duration = Duration::from_secs(60);

/// Watches the log of a booting machine.
pub(super) struct BootWatch {
    log: PathBuf,
    size: usize,
    grown: Instant,
    ready: bool,
}

impl BootWatch {
    /// Starts the watch now.
    pub(super) fn new(log: PathBuf) -> Self {
        Self {
            log,
            size: 0,
            grown: Instant::now(),
            ready: false,
        }
    }

    /// Whether the machine hangs: it has logged nothing for too long and is not up. To be polled
    /// often.
    pub(super) fn hangs(&mut self) -> bool {
        if self.ready {
            return false;
        }
        let log = fs::read(&self.log).unwrap_or_default();
        if log.len() != self.size {
            (self.size, self.grown) = (log.len(), Instant::now());
            self.ready = String::from_utf8_lossy(&log).contains(READY);
        }
        !self.ready && self.grown.elapsed() > PAUSE_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_pause_before_ready_is_a_hang() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut watch = BootWatch::new(log.clone());
        assert!(!watch.hangs());
        watch.grown -= 2 * PAUSE_LIMIT;
        assert!(watch.hangs());
        fs::write(&log, "[ 0.1] Linux\n").unwrap();
        assert!(!watch.hangs());
        watch.grown -= 2 * PAUSE_LIMIT;
        assert!(watch.hangs());
        fs::write(&log, "[ 0.1] Linux\n[ 2.0] testbed: ready\n").unwrap();
        assert!(!watch.hangs());
        watch.grown -= 2 * PAUSE_LIMIT;
        assert!(!watch.hangs());
    }
}
