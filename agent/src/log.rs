//! Lines in the kernel log, which the base reads from the node's memory.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum bytes of a line, which with its prefix must fit a record (`LOG_LINE_MAX`).
const LINE_MAX: usize = 800;

/// Whether this process is the base's, whose kernel log is not the agent's.
static ON_BASE: AtomicBool = AtomicBool::new(false);

/// Has lines of the agent go to its standard error, which is a file on the base.
pub(crate) fn use_standard_error() {
    ON_BASE.store(true, Ordering::Relaxed);
}

/// Whether this process is the base's.
pub(crate) fn is_on_base() -> bool {
    ON_BASE.load(Ordering::Relaxed)
}

/// Logs a line of the agent.
pub(crate) fn log(text: &str) {
    match is_on_base() {
        true => eprintln!("{text}"),
        false => line("insula-agent", text.as_bytes()),
    }
}

/// Output of a program, logged line by line with its name as prefix. What is left without an end of line is
/// logged when this is dropped.
pub(crate) struct LogLines {
    name: String,
    lines: Lines,
}

impl LogLines {
    /// Lines of a program.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            lines: Lines::default(),
        }
    }

    /// Adds output.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.lines.add(bytes, |text| line(&self.name, text));
    }
}

impl Drop for LogLines {
    fn drop(&mut self) {
        self.lines.end(|text| line(&self.name, text));
    }
}

/// Lines of bytes that come in pieces.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn add(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let mut piece = piece;
            // Bounds the memory of a line without end.
            while self.0.len() + piece.len() > LINE_MAX {
                let (first, rest) = piece.split_at(LINE_MAX - self.0.len());
                self.0.extend(first);
                self.end(&mut each);
                piece = rest;
            }
            self.0.extend(piece);
            if self.0.ends_with(b"\n") {
                self.end(&mut each);
            }
        }
    }

    /// Ends a line; those of a terminal end in a carriage return, too.
    fn end(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            let text = self.0.strip_suffix(b"\n").unwrap_or(&self.0);
            each(text.strip_suffix(b"\r").unwrap_or(text));
            self.0.clear();
        }
    }
}

/// Writes a record; errors are ignored. Without the final newline the kernel would hold the record
/// back as incomplete. The base's log is not for programs.
fn line(name: &str, text: &[u8]) {
    if is_on_base() {
        return;
    }
    let record = [name.as_bytes(), b": ", text, b"\n"].concat();
    let log = OpenOptions::new().write(true).open("/dev/kmsg");
    let _ = log.and_then(|mut log| log.write_all(&record));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_split() {
        let text = [
            b"short\n\nof a terminal\r\n".to_vec(),
            vec![b'x'; LINE_MAX + 1],
        ]
        .concat();
        for size in [1, 7, text.len()] {
            let (mut lines, mut lengths) = (Lines::default(), Vec::new());
            for piece in text.chunks(size) {
                lines.add(piece, |line| lengths.push(line.len()));
            }
            lines.end(|line| lengths.push(line.len()));
            assert_eq!(lengths, [5, 0, 13, LINE_MAX, 1], "in pieces of {size}");
        }
    }
}
