//! Forwarding the standard error of backends to the log of the node's supervisor.

use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::monitor::DeviceEvents;

/// Bytes after which a line is split.
const LINE_MAX: u64 = 500;
/// Lines per [`SPAN`]; further ones are dropped, since a node can make a backend log much.
const LINES_MAX: u32 = 20;
const SPAN: Duration = Duration::from_secs(60);

/// Forwards the lines of a backend until it closes its standard error.
pub(super) fn forward(stderr: ChildStderr, device: &str, device_events: &Arc<dyn DeviceEvents>) {
    let (device, device_events) = (device.to_owned(), Arc::clone(device_events));
    // If there is no thread, the pipe is closed and the backend goes on.
    let _ = thread::Builder::new().name("stderr".into()).spawn(move || {
        let mut limit = RateLimit::new();
        read_lines(BufReader::new(stderr), |line| {
            limit.forward(line, Instant::now(), |text| {
                device_events.report(&format!("{device}: {text}"));
            });
        });
    });
}

fn read_lines(mut from: impl BufRead, mut each: impl FnMut(&str)) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(1..) => {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim();
                if !text.is_empty() {
                    each(text);
                }
            }
            _ => return,
        }
    }
}

/// Number of lines in the present span of time.
struct RateLimit {
    began: Instant,
    lines: u32,
}

impl RateLimit {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            lines: 0,
        }
    }

    fn forward(&mut self, line: &str, now: Instant, mut forward: impl FnMut(&str)) {
        if now.duration_since(self.began) >= SPAN {
            (self.began, self.lines) = (now, 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines <= LINES_MAX {
            let safe: String = line.chars().filter(|char| !char.is_control()).collect();
            forward(&safe);
        } else if self.lines == LINES_MAX + 1 {
            forward("further lines are dropped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_in_length_and_number() {
        let long = "x".repeat(2 * LINE_MAX as usize + 1);
        let mut lines = Vec::new();
        read_lines(format!("one\n\n{long}\ntwo").as_bytes(), |line| {
            lines.push(line.len());
        });
        assert_eq!(lines, [3, LINE_MAX as usize, LINE_MAX as usize, 1, 3]);

        let (mut limit, mut lines) = (RateLimit::new(), Vec::new());
        let now = Instant::now();
        for _ in 0..100 {
            limit.forward("a\x1b[2J", now, |text| lines.push(text.to_owned()));
        }
        assert_eq!(lines.len(), LINES_MAX as usize + 1);
        assert_eq!(lines[0], "a[2J");
        limit.forward("later", now + SPAN, |text| lines.push(text.to_owned()));
        assert_eq!(lines.last().unwrap(), "later");
    }
}
