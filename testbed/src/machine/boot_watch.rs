//! Telling a machine that hangs while it boots from one that is slow.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the first process logs before it begins with the task.
const READY: &str = "testbed: ready";
/// A booting kernel has always something to log. On a quiet host the longest
/// pause is half a second; on a loaded one all takes ten times as long.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// Watches the log of a machine that boots.
pub(super) struct BootWatch {
    log: PathBuf,
    size: usize,
    grown: Instant,
    ready: bool,
}

impl BootWatch {
    /// Begins now.
    pub(super) fn new(log: PathBuf) -> Self {
        Self {
            log,
            size: 0,
            grown: Instant::now(),
            ready: false,
        }
    }

    /// Whether it hangs: it has logged nothing for long and is not up. Ask often.
    pub(super) fn hangs(&mut self) -> bool {
        if self.ready {
            return false;
        }
        let log = fs::read(&self.log).unwrap_or_default();
        if log.len() != self.size {
            (self.size, self.grown) = (log.len(), Instant::now());
            self.ready = String::from_utf8_lossy(&log).contains(READY);
        }
        !self.ready && self.grown.elapsed() > SILENCE_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_silence_before_ready_is_a_hang() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let mut watch = BootWatch::new(log.clone());
        assert!(!watch.hangs());
        watch.grown -= 2 * SILENCE_LIMIT;
        assert!(watch.hangs());
        fs::write(&log, "[ 0.1] Linux\n").unwrap();
        assert!(!watch.hangs());
        watch.grown -= 2 * SILENCE_LIMIT;
        assert!(watch.hangs());
        fs::write(&log, "[ 0.1] Linux\n[ 2.0] testbed: ready\n").unwrap();
        assert!(!watch.hangs());
        watch.grown -= 2 * SILENCE_LIMIT;
        assert!(!watch.hangs());
    }
}
