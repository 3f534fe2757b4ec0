//! Lines in the kernel log, which the base reads out of the node's memory.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};

/// Bytes of a record of the kernel log, with room for what is put before them (`LOG_LINE_MAX`).
const LINE_MAX: usize = 800;

/// Tells something of the agent.
pub(crate) fn say(text: &str) {
    line("insula-agent", text.as_bytes());
}

/// Tells all that somebody prints, line by line, until its end. `name` is put before each.
pub(crate) fn pass_on(name: &str, from: impl Read) -> io::Result<()> {
    each_line(from, |text| line(name, text))
}

fn each_line(from: impl Read, mut tell: impl FnMut(&[u8])) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut text = Vec::new();
    // A line without end must not take all memory.
    while from
        .by_ref()
        .take(LINE_MAX as u64)
        .read_until(b'\n', &mut text)?
        > 0
    {
        tell(text.strip_suffix(b"\n").unwrap_or(&text));
        text.clear();
    }
    Ok(())
}

/// If there is no log, there is nobody to tell. Without a line's end the kernel would keep the record
/// from its readers until there is another one: it could go on.
fn line(name: &str, text: &[u8]) {
    let record = [name.as_bytes(), b": ", text, b"\n"].concat();
    let log = OpenOptions::new().write(true).open("/dev/kmsg");
    let _ = log.and_then(|mut log| log.write_all(&record));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_end_is_cut() {
        let text = [b"short\n\n".to_vec(), vec![b'x'; LINE_MAX + 1]].concat();
        let mut lengths = Vec::new();
        each_line(text.as_slice(), |line| lengths.push(line.len())).unwrap();
        assert_eq!(lengths, [5, 0, LINE_MAX, 1]);
    }
}
