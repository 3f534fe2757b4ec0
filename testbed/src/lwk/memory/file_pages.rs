//! Files that threads write, cut and read at once: each finds its own file as it has left it, and in the others' nothing
//! but what their owners write.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use crate::lwk::ProbeError;

/// Threads, each with a file of its own.
const THREADS: u8 = 4;
/// Size up to which a file is written.
const SIZE: usize = 600 << 10;
/// Most bytes of a read or write.
const PART: usize = 20_000;
/// Different bytes that an owner writes. No other owner writes these.
const TAGS: u8 = 32;

/// Plays `rounds` calls with each file in a folder.
pub(crate) fn probe(folder: &str, rounds: u64) -> Result<(), ProbeError> {
    let folder = Path::new(folder);
    let open = |number: u8| {
        let path = folder.join(format!("pages{number}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        options.open(path)
    };
    let files: Vec<File> = (0..THREADS)
        .map(open)
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    thread::scope(|scope| {
        let players: Vec<_> = (0..THREADS)
            .map(|own| {
                let mut player = Player::new(own, &files);
                scope.spawn(move || (0..rounds).try_for_each(|_| player.step()))
            })
            .collect();
        players.into_iter().try_for_each(|player| {
            let panicked = |_| ProbeError::Wrong("a thread has panicked".into());
            player.join().map_err(panicked)?
        })
    })
}

fn failed(error: io::Error) -> ProbeError {
    ProbeError::Wrong(error.to_string())
}

/// A thread, and what it has left in its file.
struct Player<'a> {
    own: u8,
    files: &'a [File],
    content: Vec<u8>,
    random: u64,
}

impl<'a> Player<'a> {
    fn new(own: u8, files: &'a [File]) -> Self {
        Self {
            own,
            files,
            content: Vec::new(),
            random: own.into(),
        }
    }

    /// Returns a random number, by a linear congruential generator.
    fn below(&mut self, most: usize) -> usize {
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(1);
        (self.random >> 33) as usize % most
    }

    fn step(&mut self) -> Result<(), ProbeError> {
        let (at, length) = (self.below(SIZE), 1 + self.below(PART));
        match self.below(40) {
            0 => self.cut(at),
            1..8 => self.write(at, length),
            8..24 => self.read(at, length),
            _ => self.read_another(at, length),
        }
    }

    fn cut(&mut self, at: usize) -> Result<(), ProbeError> {
        self.content.resize(at, 0);
        let file = &self.files[usize::from(self.own)];
        file.set_len(at as u64).map_err(failed)
    }

    fn write(&mut self, at: usize, length: usize) -> Result<(), ProbeError> {
        let tag = 1 + self.own * TAGS + self.below(TAGS.into()) as u8;
        let size = self.content.len().max(at + length);
        self.content.resize(size, 0);
        self.content[at..at + length].fill(tag);
        let file = &self.files[usize::from(self.own)];
        let bytes = &self.content[at..at + length];
        file.write_all_at(bytes, at as u64).map_err(failed)
    }

    fn read(&mut self, at: usize, length: usize) -> Result<(), ProbeError> {
        let end = self.content.len().min(at + length);
        let expected = self.content.get(at..end).unwrap_or_default();
        let mut found = vec![0; length];
        let file = &self.files[usize::from(self.own)];
        let read = file.read_at(&mut found, at as u64).map_err(failed)?;
        match found[..read] == *expected {
            true => Ok(()),
            false => Err(ProbeError::Wrong(format!(
                "{read} bytes at {at} of file {} are not the {} that were written",
                self.own,
                expected.len()
            ))),
        }
    }

    fn read_another(&mut self, at: usize, length: usize) -> Result<(), ProbeError> {
        let other = self.below(THREADS.into());
        let mut found = vec![0; length];
        let read = self.files[other].read_at(&mut found, at as u64);
        let read = read.map_err(failed)?;
        let first = 1 + other as u8 * TAGS;
        let is_foreign = |byte: &&u8| **byte != 0 && !(first..first + TAGS).contains(byte);
        match found[..read].iter().find(is_foreign) {
            None => Ok(()),
            Some(byte) => Err(ProbeError::Wrong(format!(
                "byte {byte} is in file {other}, at {at} or behind"
            ))),
        }
    }
}
