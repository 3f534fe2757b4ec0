//! Lines in the kernel log, which the base reads from the node's memory.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
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

/// Logs output line by line up to its end, with `name` as prefix.
pub(crate) fn forward(name: &str, from: impl Read) -> io::Result<()> {
    each_line(from, |text| line(name, text))
}

fn each_line(from: impl Read, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut text = Vec::new();
    // Bounds the memory of a line without end.
    while from
        .by_ref()
        .take(LINE_MAX as u64)
        .read_until(b'\n', &mut text)?
        > 0
    {
        each(text.strip_suffix(b"\n").unwrap_or(&text));
        text.clear();
    }
    Ok(())
}

/// Writes a record; errors are ignored. Without the final newline the kernel would hold the record
/// back as incomplete.
fn line(name: &str, text: &[u8]) {
    let record = [name.as_bytes(), b": ", text, b"\n"].concat();
    let log = OpenOptions::new().write(true).open("/dev/kmsg");
    let _ = log.and_then(|mut log| log.write_all(&record));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_split() {
        let text = [b"short\n\n".to_vec(), vec![b'x'; LINE_MAX + 1]].concat();
        let mut lengths = Vec::new();
        each_line(text.as_slice(), |line| lengths.push(line.len())).unwrap();
        assert_eq!(lengths, [5, 0, LINE_MAX, 1]);
    }
}
