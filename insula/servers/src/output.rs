//! What servers print: the last of it, in a file of bounded size.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Most bytes of the file: it is in memory. When it is full it begins anew.
const BYTES_MAX: usize = 256 << 10;

/// The file of a server's output.
#[derive(Clone, Debug)]
pub(crate) struct Output(Arc<Mutex<(File, usize)>>);

impl Output {
    /// Creates it, or empties it.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Mutex::new((File::create(path)?, 0)))))
    }

    /// Adds a line.
    pub(crate) fn line(&self, line: &[u8]) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (file, size) = &mut *inner;
        let line = &line[..line.len().min(BYTES_MAX - 1)];
        if *size + line.len() + 1 > BYTES_MAX {
            file.set_len(0)?;
            file.rewind()?;
            *size = 0;
        }
        file.write_all(&[line, b"\n"].concat())?;
        *size += line.len() + 1;
        Ok(())
    }

    /// Adds all lines of a pipe, until it is closed.
    pub(crate) fn take(&self, from: impl Read + Send + 'static) {
        let output = self.clone();
        thread::spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            while read_line(&mut from, &mut line).is_ok_and(|is_line| is_line) {
                // Without room the server runs on; what it prints is lost.
                let _ = output.line(&line);
            }
        });
    }
}

/// Reads a line without its end, or the part of a long one that the file can hold. False at the end.
fn read_line(from: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = from
        .by_ref()
        .take(BYTES_MAX as u64)
        .read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    Ok(read > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_last_lines_and_never_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let output = Output::create(&path).unwrap();
        let long = vec![b'x'; 1000];
        for number in 0..1000 {
            output.line(&long).unwrap();
            output.line(format!("{number}").as_bytes()).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() <= BYTES_MAX as u64);
        }
        output.line(&vec![b'y'; 2 * BYTES_MAX]).unwrap();
        output.line(b"last").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "last\n");
    }

    #[test]
    fn lines_are_taken_apart() {
        let mut from = BufReader::new(&b"one\n\ntwo"[..]);
        let mut line = Vec::new();
        let mut lines = Vec::new();
        while read_line(&mut from, &mut line).unwrap() {
            lines.push(line.clone());
        }
        assert_eq!(lines, [&b"one"[..], b"", b"two"]);
    }
}
