//! Reads of blocks of a file in an order that no cache foresees, as Bonnie makes them: with or without updates.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use insula_driver::tsc;

use crate::probe::Ticks;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Accesses that are counted at once.
pub const COUNT: usize = 256;
/// Accesses between two updates, these included.
const UPDATE_EVERY: usize = 10;
/// Blocks by which each access is away from the one before: no power of two, and prime.
const STRIDE: usize = 769;

/// A file, and where it is accessed next.
#[derive(Debug)]
pub struct Blocks {
    file: File,
    count: usize,
    updates: bool,
    accesses: usize,
    block: Box<[u8; BLOCK]>,
}

impl Blocks {
    /// Opens a file, and reads all of it once. With `updates` each tenth access writes a block.
    ///
    /// # Errors
    /// When it cannot be opened or read, or has no block.
    pub fn open(path: &Path, updates: bool) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(updates).open(path)?;
        let count = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX) / BLOCK;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut blocks = Self {
            file,
            count,
            updates: false,
            accesses: 0,
            block: Box::new([0; BLOCK]),
        };
        (0..count).try_for_each(|_| blocks.access())?;
        blocks.updates = updates;
        Ok(blocks)
    }

    /// Reads a block, or writes one.
    ///
    /// # Errors
    /// Those of pread(2) and pwrite(2).
    pub fn access(&mut self) -> io::Result<()> {
        self.accesses += 1;
        let offset = (self.accesses * STRIDE % self.count * BLOCK) as u64;
        match self.updates && self.accesses.is_multiple_of(UPDATE_EVERY) {
            true => self.file.write_all_at(&self.block[..], offset),
            false => self.file.read_exact_at(&mut self.block[..], offset),
        }
    }
}

/// Accesses blocks of a file: median and 99th percentile of the durations.
///
/// # Errors
/// As of [`Blocks`].
pub fn each(path: &Path, updates: bool) -> io::Result<Ticks> {
    let mut blocks = Blocks::open(path, updates)?;
    let mut all = Vec::with_capacity(COUNT * 4);
    for _ in 0..COUNT * 4 {
        let began = tsc();
        blocks.access()?;
        all.push(tsc() - began);
    }
    Ok(Ticks::of(all))
}

/// Reads parts of a file, each of so many bytes, one after the other and again: median and 99th percentile of the durations.
///
/// # Errors
/// Those of pread(2); if the file has fewer bytes.
pub fn each_of_size(path: &Path, bytes: usize) -> io::Result<Ticks> {
    let file = File::open(path)?;
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let parts = size / bytes.max(1);
    if parts == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut buffer = vec![0; bytes];
    let mut all = Vec::with_capacity(COUNT);
    for number in 0..parts + COUNT {
        let began = tsc();
        file.read_exact_at(&mut buffer, (number % parts * bytes) as u64)?;
        // First all are read once.
        if number >= parts {
            all.push(tsc() - began);
        }
    }
    Ok(Ticks::of(all))
}

/// What a child of [`by_many`] says when it can begin.
const READY: &str = "ready\n";

/// Accesses blocks of a file `count` times, with updates, when told so by its standard input.
///
/// # Errors
/// As of [`Blocks`].
pub fn when_told(path: &Path, count: usize) -> io::Result<Ticks> {
    let mut blocks = Blocks::open(path, true)?;
    io::stdout().write_all(READY.as_bytes())?;
    io::stdin().read_exact(&mut [0])?;
    let began = tsc();
    (0..count).try_for_each(|_| blocks.access())?;
    Ok(Ticks::once(tsc() - began))
}

/// Has so many processes access blocks of a file at the same time, `count` times each: both figures are the
/// duration until the last has ended.
///
/// # Errors
/// When one fails.
pub fn by_many(path: &Path, count: usize, processes: usize) -> io::Result<Ticks> {
    let mut children = Vec::new();
    for _ in 0..processes {
        // On a node the link of the process leads to the first program that its proxy has started.
        let mut command = Command::new(std::env::args_os().next().unwrap_or_default());
        command.args(["blocks", "when-told"]).arg(path);
        command.arg(count.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut ready = [0; READY.len()];
        if let Some(output) = &mut child.stdout {
            output.read_exact(&mut ready)?;
        }
        children.push(child);
    }
    let began = tsc();
    for child in &mut children {
        if let Some(input) = &mut child.stdin {
            input.write_all(b"x")?;
        }
    }
    for mut child in children {
        if !child.wait()?.success() {
            return Err(io::Error::other("a process has failed"));
        }
    }
    Ok(Ticks::once(tsc() - began))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_blocks_are_accessed_and_each_tenth_is_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&[7; 32 * BLOCK], 0).unwrap();
        let mut blocks = Blocks::open(file.path(), true).unwrap();
        let mut seen = BTreeSet::new();
        for _ in 0..32 {
            seen.insert((blocks.accesses + 1) * STRIDE % blocks.count);
            blocks.access().unwrap();
        }
        assert_eq!(seen.len(), 32);
        file.as_file().set_len(100).unwrap();
        assert!(Blocks::open(file.path(), false).is_err());
    }
}
