//! The same calls as requests to a server.

use std::collections::BTreeMap;

use insula_abi::files::{CURRENT, NONE, operation};
use nix::libc;

use super::cached::{Cached, Pages};
use super::calls::{Calls, Outcome, Step, open_flags, status};
use super::routed::Routed;
use crate::files::{FileSystem, Files, Memory};
use crate::{Call, Handler, Words, local};

/// A server, and what is open there.
pub(crate) struct Served<H = Files<Memory>> {
    files: H,
    handles: Vec<u64>,
    last: u64,
}

const MOUNT: &str = "/mnt/server";
/// No handle was ever that.
const CLOSED: u64 = u64::MAX - 1;

impl Served {
    pub(super) fn new() -> Self {
        Self::with_room(1 << 30)
    }

    pub(super) fn with_room(bytes: u64) -> Self {
        Self::on(Memory::new(bytes))
    }
}

impl<F: FileSystem> Served<Routed<F>> {
    /// One with shards.
    pub(crate) fn sharded(system: F, shards: usize, bytes: usize) -> Self {
        Self::by(Routed::new(system, shards, bytes))
    }
}

impl<F: FileSystem> Served<Cached<Routed<F>>> {
    /// One with shards, whose shared pages are read without asking.
    pub(crate) fn sharded_and_cached(system: F, shards: usize, bytes: usize) -> Self {
        let (routed, pages) = (Routed::new(system, shards, bytes), Pages::default());
        routed.share(&pages);
        Self::by(Cached::with(routed, pages))
    }

    /// Another client of the same server, by its number.
    pub(super) fn another(&self, number: u64) -> Self {
        let (server, pages) = (self.files.server.another(), self.files.pages.clone());
        Self {
            last: number << 32,
            ..Self::by(Cached::with(server, pages))
        }
    }

    /// Closes all files. Returns the file system.
    pub(crate) fn end_all(mut self) -> F {
        self.close_all();
        self.files.server.end()
    }

    /// Reads of which the server has heard nothing.
    pub(super) fn unasked_of_shards(&self) -> usize {
        self.files.unasked
    }
}

impl<F: FileSystem> Served<Cached<Files<F>>> {
    /// One whose shared pages are read without asking.
    pub(crate) fn cached(system: F) -> Self {
        Self::by(Cached::new(Files::new(system)))
    }

    /// Maps a file to be read alone, likewise.
    pub(super) fn map_to_read(&mut self, file: usize, mapping: u64, length: u64) -> Outcome {
        let words = [self.handle(file), mapping, 0, length, 0];
        self.value(operation::MAP, &words, &[])
    }

    /// Maps a file to be written, by the number of its mapping.
    pub(crate) fn map(
        &mut self,
        file: usize,
        mapping: u64,
        (offset, length): (u64, u64),
    ) -> Outcome {
        let words = [self.handle(file), mapping, offset, length, 1];
        self.value(operation::MAP, &words, &[])
    }

    /// Synchronizes a mapping.
    pub(crate) fn synchronize(&mut self, mapping: u64) -> Outcome {
        self.value(operation::MSYNC, &[mapping], &[])
    }

    /// Ends a mapping.
    pub(super) fn unmap(&mut self, mapping: u64) -> Outcome {
        let ended = self.value(operation::UNMAP, &[mapping], &[]);
        self.files.mapped.clear();
        ended
    }

    /// Returns how many blocks are free.
    pub(super) fn free_blocks_of_cached(&mut self) -> u64 {
        self.files.server.system().statistics().unwrap().free_blocks
    }

    /// Closes all files. Returns the file system.
    pub(super) fn end_cached(mut self) -> F {
        self.close_all();
        self.files.server.into_system()
    }

    /// Returns `st_mtim` of a path.
    pub(super) fn modified(&mut self, path: &str) -> (i64, i64) {
        let mut stat = [0; 144];
        self.ask(operation::STAT, &[NONE, 0], &paths(&[path]), &mut stat);
        let word = |at: usize| i64::from_le_bytes(std::array::from_fn(|byte| stat[at + byte]));
        (word(88), word(96))
    }

    /// Returns `st_atim` of a path, in seconds.
    pub(super) fn accessed(&mut self, path: &str) -> i64 {
        let mut stat = [0; 144];
        self.ask(operation::STAT, &[NONE, 0], &paths(&[path]), &mut stat);
        i64::from_le_bytes(std::array::from_fn(|byte| stat[72 + byte]))
    }

    /// Returns the pages of mapped files, by file and number.
    pub(super) fn mapped(&self) -> &BTreeMap<(u64, u64), usize> {
        &self.files.mapped
    }

    /// Reads of which the server has heard nothing.
    pub(crate) fn unasked(&self) -> usize {
        self.files.unasked
    }
}

impl<F: FileSystem> Served<Files<F>> {
    pub(crate) fn on(system: F) -> Self {
        Self::by(Files::new(system))
    }

    /// Closes all files. Returns the file system.
    pub(crate) fn end(mut self) -> F {
        self.close_all();
        self.files.into_system()
    }

    pub(crate) fn system(&mut self) -> &mut F {
        self.files.system()
    }

    pub(crate) fn free_blocks(&mut self) -> u64 {
        self.files.system().statistics().unwrap().free_blocks
    }
}

impl<H: Handler> Served<H> {
    fn by(files: H) -> Self {
        Self {
            files,
            handles: Vec::new(),
            last: 0,
        }
    }

    /// Number of the inode that a path leads to, if it leads to one.
    pub(crate) fn inode(&mut self, path: &str) -> Option<u64> {
        let words = [NONE, libc::AT_SYMLINK_NOFOLLOW as u64];
        match self.bytes(operation::STAT, &words, &paths(&[path]), 144) {
            Outcome::Bytes(_) => {
                let mut stat = [0; 144];
                self.ask(operation::STAT, &words, &paths(&[path]), &mut stat);
                Some(u64::from_le_bytes(std::array::from_fn(|at| stat[8 + at])))
            }
            _ => None,
        }
    }

    pub(super) fn close_all(&mut self) {
        for handle in std::mem::take(&mut self.handles) {
            self.value(operation::RELEASE, &[handle], &[]);
        }
    }

    fn handle(&self, at: usize) -> u64 {
        self.handles.get(at).copied().unwrap_or(CLOSED)
    }

    /// Makes a request. Returns its words.
    fn ask(
        &mut self,
        operation: u32,
        words: &[u64],
        readable: &[u8],
        writable: &mut [u8],
    ) -> Words {
        let mut all = Words::default();
        all[..words.len()].copy_from_slice(words);
        let call = Call {
            operation,
            words: all,
            readable,
            writable,
            timeout: None,
        };
        // Sometimes the paths come with the request, sometimes they have to be read.
        let first = (readable.len() % 2) * 256;
        local::call_with_first(&mut self.files, call, first)
    }

    fn value(&mut self, operation: u32, words: &[u64], readable: &[u8]) -> Outcome {
        outcome(self.ask(operation, words, readable, &mut [])[0])
    }

    fn bytes(&mut self, operation: u32, words: &[u64], readable: &[u8], size: usize) -> Outcome {
        let mut buffer = vec![0; size];
        let [result, ..] = self.ask(operation, words, readable, &mut buffer);
        match outcome(result) {
            Outcome::Value(length) => {
                buffer.truncate(length as usize);
                Outcome::Bytes(buffer)
            }
            error => error,
        }
    }

    /// Returns the handle of a file that it opens.
    fn open(&mut self, path: &str, flags: i32) -> Outcome {
        self.last += 1;
        let words = [NONE, flags as u64, 0o640, self.last];
        match self.value(operation::OPEN, &words, &paths(&[path])) {
            Outcome::Value(0) => Outcome::Value(self.last as i64),
            other => other,
        }
    }

    /// Opens a file, does something with its handle, and closes it.
    fn with(
        &mut self,
        path: &str,
        flags: i32,
        action: impl FnOnce(&mut Self, u64) -> Outcome,
    ) -> Outcome {
        match self.open(path, flags) {
            Outcome::Value(handle) => {
                let handle = handle as u64;
                let result = action(self, handle);
                self.value(operation::RELEASE, &[handle], &[]);
                result
            }
            error => error,
        }
    }

    fn list(&mut self, handle: u64) -> Outcome {
        let mut names = Vec::new();
        loop {
            // Small, so that a listing takes several calls.
            match self.bytes(operation::READDIR, &[handle], &[], 80) {
                Outcome::Bytes(bytes) if bytes.is_empty() => break,
                Outcome::Bytes(bytes) => add_names(&bytes, &mut names),
                error => return error,
            }
        }
        names.sort();
        Outcome::Names(names)
    }
}

fn outcome(result: u64) -> Outcome {
    match result.cast_signed() {
        error @ -4095..0 => Outcome::Error(-error as i32),
        value => Outcome::Value(value),
    }
}

/// The mount point and paths, each with its NUL.
fn paths(all: &[&str]) -> Vec<u8> {
    let all = [&[MOUNT], all].concat();
    all.iter()
        .flat_map(|path| [path.as_bytes(), &[0]].concat())
        .collect()
}

fn add_names(mut bytes: &[u8], to: &mut Vec<String>) {
    while !bytes.is_empty() {
        let size = usize::from(u16::from_le_bytes([bytes[16], bytes[17]]));
        let name = bytes[19..size].split(|byte| *byte == 0).next().unwrap();
        to.push(String::from_utf8_lossy(name).into_owned());
        bytes = &bytes[size..];
    }
}

impl<H: Handler> Calls for Served<H> {
    fn play(&mut self, step: &Step) -> Outcome {
        let file = |at: &usize| self.handle(*at);
        let closed = |outcome| match outcome {
            // The kernel knows which descriptors are open.
            Outcome::Error(libc::ESTALE) => Outcome::Error(libc::EBADF),
            outcome => outcome,
        };
        let follow = |follows: &bool| {
            if *follows {
                0
            } else {
                libc::AT_SYMLINK_NOFOLLOW as u64
            }
        };
        closed(match step {
            Step::Open(path, mode, bits) => match self.open(path, open_flags(*mode, *bits)) {
                Outcome::Value(handle) => {
                    self.handles.push(handle as u64);
                    Outcome::Value(0)
                }
                error => error,
            },
            Step::Close(at) => {
                let handle = file(at);
                if handle == CLOSED {
                    return Outcome::Error(libc::EBADF);
                }
                self.handles[*at] = CLOSED;
                self.value(operation::RELEASE, &[handle], &[])
            }
            Step::Read(at, size) => self.bytes(operation::READ, &[file(at), CURRENT], &[], *size),
            Step::ReadAt(at, offset, size) => {
                self.bytes(operation::READ, &[file(at), *offset as u64], &[], *size)
            }
            Step::Write(at, size, byte) => {
                self.value(operation::WRITE, &[file(at), CURRENT], &vec![*byte; *size])
            }
            Step::WriteAt(at, offset, size, byte) => {
                let words = [file(at), *offset as u64];
                self.value(operation::WRITE, &words, &vec![*byte; *size])
            }
            Step::Seek(at, offset, whence) => self.seek(file(at), *offset, *whence % 3),
            // The base's, which looks at the size first.
            Step::Truncate(at, ..0) if file(at) == CLOSED => Outcome::Error(libc::EINVAL),
            Step::Truncate(at, size) => {
                let words = [file(at), *size as u64];
                self.value(operation::TRUNCATE, &words, &paths(&[""]))
            }
            Step::Allocate(at, offset, size, punches) => {
                let mode = match punches {
                    true => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    false => 0,
                };
                let words = [file(at), mode as u64, *offset as u64, *size as u64];
                self.value(operation::ALLOCATE, &words, &[])
            }
            Step::Mkdir(path) => self.value(operation::MKDIR, &[NONE, 0o750], &paths(&[path])),
            Step::Unlink(path, directory) => {
                let flags = if *directory { libc::AT_REMOVEDIR } else { 0 };
                self.value(operation::UNLINK, &[NONE, flags as u64], &paths(&[path]))
            }
            Step::Rename(from, to, new) => {
                let words = [NONE, NONE, u64::from(*new)];
                self.value(operation::RENAME, &words, &paths(&[from, to]))
            }
            Step::Link(from, to, follows) => {
                let flags = if *follows { libc::AT_SYMLINK_FOLLOW } else { 0 };
                let words = [NONE, NONE, flags as u64];
                self.value(operation::LINK, &words, &paths(&[from, to]))
            }
            Step::Symlink(target, path) => {
                self.value(operation::SYMLINK, &[NONE], &paths(&[path, target]))
            }
            Step::ReadLink(path) => self.bytes(operation::READLINK, &[NONE], &paths(&[path]), 100),
            Step::Stat(path, follows) => {
                let found = self.bytes(
                    operation::STAT,
                    &[NONE, follow(follows)],
                    &paths(&[path]),
                    144,
                );
                self.status(found, path, *follows)
            }
            Step::Chmod(path, mode) => {
                self.value(operation::CHMOD, &[NONE, (*mode).into()], &paths(&[path]))
            }
            Step::Touch(path, at) => {
                let times = [*at, 0, *at, 0].map(i64::to_le_bytes).concat();
                let readable = [paths(&[path]), times].concat();
                self.value(operation::UTIMES, &[NONE, 0, 1], &readable)
            }
            Step::List(path) => self.with(path, libc::O_DIRECTORY, Self::list),
            Step::Sync(at) => self.value(operation::SYNC, &[file(at), 0], &[]),
            Step::Content(path) => self.with(path, libc::O_NOFOLLOW, |served, handle| {
                served.bytes(operation::READ, &[handle, CURRENT], &[], 1 << 20)
            }),
        })
    }
}

impl<H: Handler> Served<H> {
    fn seek(&mut self, handle: u64, offset: i64, whence: i32) -> Outcome {
        let mut stat = [0; 144];
        let [result, ..] = self.ask(operation::STAT, &[handle, 0], &paths(&[""]), &mut stat);
        let mode = u32::from_le_bytes(std::array::from_fn(|at| stat[24 + at]));
        match result == 0 && mode & libc::S_IFMT == libc::S_IFDIR {
            true => Outcome::Value(0),
            false => self.value(
                operation::SEEK,
                &[handle, offset as u64, whence as u64],
                &[],
            ),
        }
    }

    /// Returns what file systems agree on of a `struct stat`, which must be that of a `struct statx`.
    fn status(&mut self, found: Outcome, path: &str, follows: bool) -> Outcome {
        let flags = if follows {
            0
        } else {
            libc::AT_SYMLINK_NOFOLLOW as u64
        };
        let mut stat = [0; 144];
        let mut statx = [0; 256];
        let words = [NONE, flags, 0];
        self.ask(operation::STAT, &words, &paths(&[path]), &mut stat);
        self.ask(operation::STATX, &words, &paths(&[path]), &mut statx);
        let word =
            |bytes: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half =
            |bytes: &[u8], at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        match found {
            Outcome::Bytes(_) => {
                let (mode, links, size) = (half(&stat, 24), word(&stat, 16), word(&stat, 48));
                assert_eq!(mode, half(&statx, 28) & 0xffff);
                assert_eq!(links, u64::from(half(&statx, 16)));
                assert_eq!([word(&stat, 8), size], [word(&statx, 32), word(&statx, 40)]);
                status(mode, links, size)
            }
            error => error,
        }
    }
}
