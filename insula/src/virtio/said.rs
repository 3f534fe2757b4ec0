//! What programs say that serve a device: it goes where the node's supervisor tells what happens.

use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::keeper::Trouble;

/// Longer lines are cut off, at so many bytes.
const LINE_MAX: u64 = 500;
/// A node can make a program say much. More lines than so many in one span of time are left out.
const LINES_MAX: u32 = 20;
const SPAN: Duration = Duration::from_secs(60);

/// Passes on what a program says, until its end.
pub(super) fn pass_on(said: ChildStderr, device: &str, trouble: &Arc<dyn Trouble>) {
    let (device, trouble) = (device.to_owned(), Arc::clone(trouble));
    // Without a thread nobody hears it: the program goes on when its pipe is closed.
    let _ = thread::Builder::new().name("said".into()).spawn(move || {
        let mut limit = Limit::new();
        read_lines(BufReader::new(said), |line| {
            limit.tell(line, Instant::now(), |text| {
                trouble.complain(&format!("{device}: {text}"));
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

/// How much has been told in the present span of time.
struct Limit {
    began: Instant,
    told: u32,
}

impl Limit {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            told: 0,
        }
    }

    fn tell(&mut self, line: &str, now: Instant, mut tell: impl FnMut(&str)) {
        if now.duration_since(self.began) >= SPAN {
            (self.began, self.told) = (now, 0);
        }
        self.told = self.told.saturating_add(1);
        if self.told <= LINES_MAX {
            let safe: String = line.chars().filter(|char| !char.is_control()).collect();
            tell(&safe);
        } else if self.told == LINES_MAX + 1 {
            tell("says more, which is left out");
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

        let (mut limit, mut told) = (Limit::new(), Vec::new());
        let now = Instant::now();
        for _ in 0..100 {
            limit.tell("a\x1b[2J", now, |text| told.push(text.to_owned()));
        }
        assert_eq!(told.len(), LINES_MAX as usize + 1);
        assert_eq!(told[0], "a[2J");
        limit.tell("later", now + SPAN, |text| told.push(text.to_owned()));
        assert_eq!(told.last().unwrap(), "later");
    }
}
